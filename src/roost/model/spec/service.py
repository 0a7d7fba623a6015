"""The blocks of a document that say how a service lives: `update`, `restart` and `health`, checked."""

import msgspec

from roost.model import limits
from roost.model.errors import Invalid
from roost.model.records.workload import Restart, Update
from roost.model.spec.names import check_text
from roost.model.spec.placement import between
from roost.model.spec.units import duration_ms
from roost.model.states import RestartWhen, WorkloadKind

PERCENT = 100
DEFAULT_INTERVAL_MS = 5_000
DEFAULT_TIMEOUT_MS = 2_000


class UpdateBlock(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    max_unavailable: int | str = "25%"
    max_surge: int | str = 0
    canary: int = 0
    healthy_after: int | float | str = "1s"
    deadline: int | float | str = "5m"
    failures: int = 3
    rollback: bool = True


class RestartBlock(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    when: RestartWhen = RestartWhen.ALWAYS
    pause: int | float | str = "1s"
    pause_max: int | float | str = "1m"


class HealthBlock(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    command: str | list[str] = ""
    tcp: str | int = ""  # the name of one of its ports, or a number
    http: str = ""  # a path; an answer of 200 to 399 is well
    port: str | int = ""  # of `http`
    interval: int | float | str = "5s"
    timeout: int | float | str = "2s"
    successes: int = 1  # in a row: it is ready
    failures: int = 3  # in a row: it is no longer ready
    start: int | float | str = "30s"  # failures do not count until then, unless it has been ready
    restart: bool = True  # an instance that is no longer ready is restarted


class Check(msgspec.Struct, frozen=True):
    argv: tuple[str, ...] = ()
    port: str | int = ""  # of tcp and http; a name stands for the port that the run was given
    path: str = ""  # of http
    interval_ms: int = DEFAULT_INTERVAL_MS
    timeout_ms: int = DEFAULT_TIMEOUT_MS
    successes: int = 1
    failures: int = 3
    start_ms: int = 30_000
    restart: bool = True


def update_of(block: UpdateBlock | None, kind: WorkloadKind, path: str) -> Update | None:
    if block is None:
        return None
    if kind != WorkloadKind.SERVICE:
        raise Invalid(path, f"only a service is updated step by step, not a {kind}")
    unavailable, unavailable_percent = _share(block.max_unavailable, f"{path}.max_unavailable")
    surge, surge_percent = _share(block.max_surge, f"{path}.max_surge")
    if not (unavailable or unavailable_percent or surge or surge_percent):
        raise Invalid(f"{path}.max_surge", "with none away and none more than there are, nothing can be replaced")
    between(block.canary, 0, limits.COUNT_SERVICE_MAX, f"{path}.canary")
    between(block.failures, 1, limits.CHECK_FAILURES_MAX, f"{path}.failures")
    deadline = duration_ms(block.deadline, f"{path}.deadline")
    healthy_after = duration_ms(block.healthy_after, f"{path}.healthy_after")
    if deadline <= healthy_after:
        raise Invalid(f"{path}.deadline", "this must be longer than healthy_after, or nothing is ever in time")
    return Update(
        unavailable, unavailable_percent, surge, surge_percent, block.canary, healthy_after, deadline,
        block.failures, block.rollback,
    )  # fmt: skip


def restart_of(block: RestartBlock | None, kind: WorkloadKind, path: str) -> Restart | None:
    if block is None:
        return None
    if kind != WorkloadKind.SERVICE:
        raise Invalid(path, f"only a service is restarted; what ends of a {kind} is tried again by `retries`")
    pause = duration_ms(block.pause, f"{path}.pause")
    most = duration_ms(block.pause_max, f"{path}.pause_max")
    if not 0 < pause <= most:
        raise Invalid(f"{path}.pause", "the first pause is longer than nothing, and not longer than pause_max")
    return Restart(block.when, pause, most)


def check_of(block: HealthBlock | None, ports: dict[str, int], kind: WorkloadKind, path: str) -> Check | None:
    if block is None:
        return None
    if kind == WorkloadKind.VM:
        raise Invalid(path, "a vm has no health check")
    if bool(block.command) + (block.tcp != "") + bool(block.http) != 1:
        raise Invalid(path, "give one of command, tcp and http")
    if block.port != "" and not block.http:
        raise Invalid(f"{path}.port", "a port beside `http` only; `tcp` names its own")
    if block.http and not block.http.startswith("/"):
        raise Invalid(f"{path}.http", "this is a path on the run's own port, such as /healthz")
    check_text(block.http, f"{path}.http")
    field = "tcp" if block.tcp != "" else "port"
    port = block.tcp if block.tcp != "" else block.port
    if not block.command:
        _check_port(port, ports, f"{path}.{field}")
    interval = duration_ms(block.interval, f"{path}.interval")
    timeout = duration_ms(block.timeout, f"{path}.timeout")
    if interval < limits.CHECK_INTERVAL_MS_MIN:
        raise Invalid(f"{path}.interval", f"at least {limits.CHECK_INTERVAL_MS_MIN} ms between two checks")
    if not 0 < timeout <= limits.CHECK_TIMEOUT_MS_MAX:
        most = limits.CHECK_TIMEOUT_MS_MAX // 1_000
        raise Invalid(f"{path}.timeout", f"this must be longer than nothing, and {most} s at most")
    between(block.successes, 1, limits.CHECK_FAILURES_MAX, f"{path}.successes")
    between(block.failures, 1, limits.CHECK_FAILURES_MAX, f"{path}.failures")
    return Check(
        argv=_argv(block.command, f"{path}.command"),
        port=port,
        path=block.http,
        interval_ms=interval,
        timeout_ms=timeout,
        successes=block.successes,
        failures=block.failures,
        start_ms=duration_ms(block.start, f"{path}.start"),
        restart=block.restart,
    )


def _argv(command: str | list[str], path: str) -> tuple[str, ...]:
    if isinstance(command, str):
        command = ["/bin/sh", "-c", command] if command else []
    between(len(command), 0, limits.ARGUMENTS_MAX, path, "arguments")
    for argument in command:
        if "\0" in argument:
            raise Invalid(path, "a command cannot hold a NUL character")
    between(sum(map(len, command)), 0, limits.COMMAND_BYTES_MAX, path, "characters")
    return tuple(command)


def _check_port(port: str | int, ports: dict[str, int], path: str) -> None:
    if isinstance(port, int):
        between(port, 1, limits.PORT_MAX, path)
    elif port not in ports:
        existing = f"its ports are {', '.join(ports)}" if ports else "it has no `ports`"
        raise Invalid(path, f"a port by its name or its number; {existing}")


def _share(value: int | str, path: str) -> tuple[int, int]:
    if isinstance(value, int):
        between(value, 0, limits.COUNT_SERVICE_MAX, path)
        return value, 0
    number = value.removesuffix("%")
    if number == value or not (number.isascii() and number.isdigit() and len(number) <= len(str(PERCENT))):
        raise Invalid(path, f"a number or a share such as 25%, not {value!r:.60}")
    between(int(number), 0, PERCENT, path, "percent")
    return 0, int(number)
