"""From an order of the server to a run of the driver: its steps, environment, limits, places, health, and a note."""

import base64
import sys
from collections.abc import Callable, Sequence

import msgspec

from roost.agent.health.probe import CHECK_MARK, ProbeTarget
from roost.drivers.container.request import ContainerHost, NoEngine, container
from roost.drivers.qemu.host import MachineHost, MachineWanted
from roost.drivers.qemu.request import NoQemu, machine, sources_of
from roost.drivers.qemu.seed import seed
from roost.keeper.containers.ending import SHIM
from roost.keeper.run import environment as keepers_environment
from roost.model.errors import Invalid
from roost.model.keys import STDERR_SUFFIX, log_name
from roost.model.limits import TEXT_LENGTH_MAX
from roost.model.protocol import Run
from roost.model.records.files import InputFailure, InputProblem
from roost.model.records.secret import Handed, Hidden
from roost.model.spec.document import Document, commands, decode_document, secrets_of, separates_stderr
from roost.model.spec.resources import read_resource
from roost.model.spec.runs.container import WORK_PLACE, ContainerBlock, ImageWanted
from roost.model.spec.runs.isolation import limits_required
from roost.model.spec.service import check_of
from roost.ports import driver

_ENCODE = msgspec.msgpack.Encoder().encode
_DECODE = msgspec.msgpack.Decoder(Run).decode
RESULT_NAME = ".roost-result.json"  # hidden: a run that lists or clears its directory rarely means it
NO_CONTAINERS = ContainerHost()
NO_MACHINES = MachineHost()
_HEALTH_KEY = msgspec.msgpack.encode("health")
_IMAGE_KEY = msgspec.msgpack.encode("image")


IsolationOf = Callable[[Document], driver.Isolation | None]  # of the run of a document; raises Invalid


not_isolated: IsolationOf = lambda document: None  # noqa: E731


def prepare(
    run: Run,
    node: str,
    directory: str,
    logs: Sequence[str],
    handed: Handed | None = None,
    host: ContainerHost = NO_CONTAINERS,
    isolation: IsolationOf = not_isolated,
    machines: MachineHost = NO_MACHINES,
) -> driver.RunRequest:
    """What to tell the driver. Raises Invalid when this order cannot be carried out here.

    The files of a virtual machine are still to be found: see `machine_files`.
    """
    document = _read(run)
    folder, bounds = work_folder(directory, run.token), limits(document)
    log, *stderr = [f"{directory}/logs/{log_file(name)}" for name in logs]
    return driver.RunRequest(
        id=str(run.token),
        steps=[driver.StepCommand(argv, ignore_failure) for argv, ignore_failure in _commands(document)],
        env=environment(run, document, node, directory),
        secrets=seed(document, run, handed) if document.vm is not None else secrets(document, handed),
        dir=folder,
        log=log,
        stderr="".join(stderr),
        timeout_ms=run.timeout_ms,
        grace_ms=run.grace_ms,
        limits=None if document.image else bounds,
        leased=run.leased,
        note=note(run),
        after=str(run.after) if run.after else "",
        container=container(host, document, run, folder, bounds) if document.image else None,
        isolation=None if document.image else isolation(document),
        machine=None if document.vm is None else machine(machines, document, run, folder),
    )


def machine_files(run: Run, request: driver.RunRequest, arch: str) -> MachineWanted | None:
    """The files that the virtual machine of a run is made of, to be found and checked; None: it is none."""
    block = None if request.machine is None else _read(run).vm
    if request.machine is None or block is None:
        return None
    return MachineWanted(request.machine, sources_of(block), arch)


def lacking(error: Invalid) -> InputFailure | None:
    """What this node lacks for a run, if that is why it cannot be prepared: another node may have it."""
    if isinstance(error, NoEngine):
        return InputFailure(InputProblem.ENGINE_AWAY)
    return InputFailure(InputProblem.NO_QEMU) if isinstance(error, NoQemu) else None


def _commands(document: Document) -> list[tuple[list[str], bool]]:
    return [([document.name], False)] if document.vm is not None else commands(document)


def image_of(run: Run, handed: Handed | None) -> tuple[ImageWanted, Hidden] | None:
    """The image that a run needs, with the password of its registry; None: it is no container."""
    if _IMAGE_KEY not in run.document:  # a search is cheaper than decoding
        return None
    document = _read(run)
    if not document.image:
        return None
    block = document.container or ContainerBlock()
    if block.registry is None:
        return ImageWanted(document.image, block.pull), Hidden()
    name = block.registry.password.secret
    if handed is None or handed.refusal or name not in handed.values:
        raise Invalid("", (handed and handed.refusal) or f"secret {name} cannot be opened: the server has not sent it")
    password = handed.values[name].decode(errors="replace")
    return ImageWanted(document.image, block.pull, block.registry.user), Hidden(password=password)


def moved_up(request: driver.RunRequest, run: Run, image: str) -> driver.RunRequest:
    """The request of a run that was held back, behind the attempt that it now waits for, with the image it has."""
    after = str(run.after) if run.after else ""
    if request.after == after and not image:
        return request
    return msgspec.structs.replace(request, after=after, note=note(run, image))


def environment(run: Run, document: Document, node: str, directory: str) -> dict[str, str]:
    return {
        **{name: value for name, value in document.env.items() if isinstance(value, str)},
        **dict(run.env),
        "ROOST_PROJECT": document.project,
        "ROOST_WORKLOAD": document.name,
        "ROOST_VERSION": str(run.version),
        "ROOST_INDEX": str(run.index),
        "ROOST_COUNT": str(document.count),
        "ROOST_ATTEMPT": str(run.attempt),
        "ROOST_ATTEMPT_TOKEN": str(run.token),
        "ROOST_NODE": node,
        "ROOST_RESULT": f"{WORK_PLACE if document.image else work_folder(directory, run.token)}/{RESULT_NAME}",
        **_given(run, document),
    }


def health(
    run: Run, node: str, directory: str, mark: str, host: ContainerHost = NO_CONTAINERS,
    isolation: IsolationOf = not_isolated,
) -> ProbeTarget | None:  # fmt: skip
    """How to find out whether a run is well; None: its document does not say. Raises Invalid, as the server would.

    A command has the run's place and environment, as the keeper made them, but not its secrets: those were for the run.
    That of a container runs inside it, with all that it has.
    """
    if _HEALTH_KEY not in run.document:  # a search is cheaper than decoding, and most documents have no health check
        return None
    document = _read(run)
    check = check_of(document.health, document.ports, document.kind, "health")
    if check is None:
        return None
    if check.argv and document.image:
        within = (sys.executable, "-I", "-S", SHIM, "check", host.socket, host.name(run.token), *check.argv)
        return ProbeTarget(msgspec.structs.replace(check, argv=within), directory="/", env={CHECK_MARK: "1"})
    if check.argv:
        place = work_folder(directory, run.token)
        env = keepers_environment(environment(run, document, node, directory), {}, str(run.token), place, mark)
        kept_apart = isolation(document)
        return ProbeTarget(check, directory=place, env=env | {CHECK_MARK: "1"}, isolation=kept_apart)
    return ProbeTarget(check, check.port if isinstance(check.port, int) else _ports(run, document).get(check.port, 0))


def secrets(document: Document, handed: Handed | None) -> Hidden:
    """The variables that are secrets, in base64: a value may be any bytes. Raises Invalid when one is not to be had."""
    values = handed.values if handed is not None else {}
    if handed is not None and handed.refusal:
        raise Invalid("", handed.refusal)
    found = Hidden()
    for variable, name in secrets_of(document).items():
        if name not in values:
            raise Invalid("", f"secret {name} cannot be opened: the server has not sent it")
        found[variable] = base64.b64encode(values[name]).decode()
    return found


def _given(run: Run, document: Document) -> dict[str, str]:
    given: dict[str, str] = {}
    if run.devices:
        given["ROOST_GPUS"] = ",".join(map(str, run.devices))
    if run.devices and not document.image:  # a container has its own devices only, counted anew
        given["CUDA_VISIBLE_DEVICES"] = given["ROOST_GPUS"]
        given["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"  # otherwise numbers would mean something else where models differ
    if run.ports:
        ports = _ports(run, document)
        given |= {f"PORT_{name.upper().replace('-', '_')}": str(port) for name, port in ports.items()}
        given["ROOST_PORTS"] = ",".join(f"{name}={port}" for name, port in ports.items())
    return given


def _read(run: Run) -> Document:
    try:
        return decode_document(run.document)
    except msgspec.MsgspecError as error:
        raise Invalid("document", f"this agent cannot read it: {error}") from None


def _ports(run: Run, document: Document) -> dict[str, int]:
    return dict(zip(document.ports, run.ports, strict=False))


def work_folder(directory: str, token: int | str) -> str:
    return f"{directory}/work/{token}"


def result_path(directory: str, token: str) -> str:
    """Where a run may leave its result. It is in the run's own directory, and goes with that."""
    return f"{work_folder(directory, token)}/{RESULT_NAME}"


def limits(document: Document) -> driver.Limits | None:
    """Only what was asked for is enforced: a run without a stated need may use what is free."""
    asked = document.resources
    if "cpu" not in asked and "memory" not in asked:
        return None
    cpu_m = read_resource("cpu", asked.get("cpu", 0), "resources.cpu")
    return driver.Limits(
        cpu_m,
        read_resource("memory", asked.get("memory", 0), "resources.memory"),
        required=bool(limits_required(document)),
    )


def log_names(run: Run) -> tuple[str, ...]:
    """What the server calls the log of a run, and that of its stderr if it has one."""
    name = log_name(run.workload, run.serial, run.index, run.attempt)
    return (name, name + STDERR_SUFFIX) if separates_stderr(run.document) else (name,)


def log_file(name: str) -> str:
    return name.replace("/", "~")


def note(run: Run, image: str = "") -> str:
    """The order itself and the digest of its image, kept by the keeper for the agent that comes after us."""
    return f"{base64.b64encode(_ENCODE(run.bare())).decode()} {image}".rstrip()


def waits_for(run: Run, existing: driver.KnownRun) -> Run:
    """The order with the attempt it really waits for: the one it names may have gone before it began."""
    if existing.state != "waiting" or not existing.after.isdecimal() or int(existing.after) == run.after:
        return run
    return msgspec.structs.replace(run, after=int(existing.after))


def one_line(text: str) -> str:
    return "".join(item if item.isprintable() else " " for item in text)[:TEXT_LENGTH_MAX]


def from_note(text: str) -> Run | None:
    """The order back; None: this is not a note of ours."""
    try:
        return _DECODE(base64.b64decode(text.partition(" ")[0], validate=True))
    except (ValueError, msgspec.MsgspecError):
        return None


def image_in_note(text: str) -> str:
    """The digest of the image of a container; empty: it is none."""
    return text.partition(" ")[2]
