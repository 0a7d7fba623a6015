"""Tunnels into running instances: a client asks for one, and connects to it by WebSocket (http/tunnels.py)."""

import os
import shlex

from roost.model.errors import Conflict, Invalid, NotFound
from roost.model.records.instance import Instance
from roost.model.records.workload import Workload
from roost.model.spec.document import decode_document, secret_names
from roost.model.states import WorkloadKind
from roost.model.tunnels import ARGV_BYTES_MAX, SIDE_MAX, TERM_LENGTH_MAX, TunnelOrder
from roost.schema.work import TunnelBody, TunnelView
from roost.server.logs.masking import Masker
from roost.server.operations.context import Call
from roost.server.views.work import instance_detail

TITLE_LENGTH_MAX = 500  # of a command in the audit log


async def open_tunnel(call: Call, project: str, name: str, index: int, fields: TunnelBody) -> TunnelView:
    """Open a tunnel into a running instance: to a command that starts in it, or to one of its ports.

    The command has the user, the namespaces and the limits of the instance. Connect to `/v1/tunnels/ID` by WebSocket
    within 15 seconds, with a token of the same principal. Each binary message is one frame: a byte for its kind, then
    content of at most 64 KiB. To the run: 0 input, 1 end of input, 2 size (rows and columns, 16 bits each), 3 signal
    (its number, one byte). From it: 4 stdout, 5 stderr, 6 end of output of a port, 7 the end, as JSON with `code`,
    `signal`, `error` and `reason`. What the command has started ends with the tunnel.
    """
    workload = await call.workload(project, name)
    instance_detail(call.engine.state, workload, index)  # whether there is such an instance
    instance = call.engine.state.instances.get(f"{workload.key}.{index}")
    if instance is None:
        raise NotFound(f"{workload.key}.{index} has not run yet", code="not_running")
    _check(fields)
    kind = workload.policy.kind
    if fields.console != (kind == WorkloadKind.VM) and not fields.port:
        message = "has no console" if fields.console else "is a virtual machine: it has a console, and no commands"
        raise Conflict(f"{workload.key} {message}", code="no_such_way")
    port = _port(fields.port, workload, instance) if fields.port else 0
    order = TunnelOrder(
        os.urandom(16).hex(), instance.token, tuple(fields.argv), fields.terminal, fields.rows, fields.columns,
        fields.term, port, fields.console,
    )  # fmt: skip
    tunnel = call.context.tunnels.begin(order, instance, call.principal, _title(call, workload, fields, port))
    return TunnelView(id=tunnel.order.id, instance=instance.key, node=instance.node, port=port)


def _check(fields: TunnelBody) -> None:
    if bool(fields.argv) + bool(fields.port) + fields.console != 1:
        raise Invalid("argv", "a tunnel leads to a command (`argv`), to a port (`port`), or to the `console`")
    if fields.argv and not fields.argv[0]:
        raise Invalid("argv[0]", "a command begins with a program")
    if sum(len(item.encode(errors="replace")) + 1 for item in fields.argv) > ARGV_BYTES_MAX:
        raise Invalid("argv", f"a command may have {ARGV_BYTES_MAX:,} bytes")
    for position, item in enumerate(fields.argv):
        if "\0" in item or not _is_text(item):
            raise Invalid(f"argv[{position}]", "an argument has no NUL byte, and is Unicode")
    for path, value in (("rows", fields.rows), ("columns", fields.columns)):
        if not 0 <= value <= SIDE_MAX:
            raise Invalid(path, f"this is a number from 0 to {SIDE_MAX:,}")
    if len(fields.term) > TERM_LENGTH_MAX or not fields.term.isascii() or not fields.term.isprintable():
        raise Invalid("term", f"this is the name of a kind of terminal, of at most {TERM_LENGTH_MAX} characters")


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _port(wanted: str, workload: Workload, instance: Instance) -> int:
    """A port that the instance was given, by its name or its number."""
    ports = dict(zip(workload.policy.ports, instance.ports, strict=False))
    if wanted in ports:
        return ports[wanted]
    if wanted.isascii() and wanted.isdecimal() and len(wanted) <= 5 and int(wanted) in ports.values():
        return int(wanted)
    known = ", ".join(f"{name} ({port})" for name, port in ports.items())
    has = f"the ports {known}" if known else "no ports; name some in `ports` of its document"
    raise Invalid("port", f"{instance.key} has {has}")


def _title(call: Call, workload: Workload, fields: TunnelBody, port: int) -> str:
    """What the audit log says of it, with the values of the workload's secrets masked."""
    if not fields.argv:
        return f"port {port}" if port else "console"
    names = secret_names(decode_document(workload.document))
    masker = Masker(call.context.secrets.values(workload.project, names))
    command = masker.mask(shlex.join(fields.argv).encode()).decode(errors="replace")
    shown = "".join(item if item.isprintable() else " " for item in command)
    shown = shown if len(shown) <= TITLE_LENGTH_MAX else f"{shown[:TITLE_LENGTH_MAX]}..."
    return f"{'terminal, ' if fields.terminal else ''}command {shown}"
