"""The workload document: what users write in YAML, JSON or Python. Read here, checked here, refused here."""

from contextlib import suppress
from typing import Any

import msgspec

from roost.model import limits
from roost.model.errors import Invalid
from roost.model.records.secret import FromSecret
from roost.model.records.template import TemplateUse
from roost.model.records.workload import After, Ask, Policy
from roost.model.spec import files
from roost.model.spec.commands import StepBlock, check_variable
from roost.model.spec.dependencies import NO_FILE, AfterBlock, ScheduleBlock, after_of, schedule_of
from roost.model.spec.files import InputBlock, OutputBlock, check_inputs, check_outputs, outputs_of, with_inputs
from roost.model.spec.gates import ApproveBlock, ConcurrencyBlock, check_gated, concurrency_of, condition_of, until_of
from roost.model.spec.names import check_name, check_text
from roost.model.spec.placement import (
    Placement,
    affinity_of,
    between,
    names_of,
    preferences_of,
    rules_of,
    tolerations_of,
)  # fmt: skip
from roost.model.spec.problems import Problems, all_of, check_each
from roost.model.spec.reading import read
from roost.model.spec.resources import devices_of, resources_of
from roost.model.spec.runs.container import (
    ContainerBlock,
    VolumeBlock,
    check_container,
    check_image,
    check_volumes,
)  # fmt: skip
from roost.model.spec.runs.gang import Gang, gang_of
from roost.model.spec.runs.isolation import check_isolation, isolation_needed, limits_required
from roost.model.spec.runs.retries import Retries, check_retries
from roost.model.spec.runs.vm import VmBlock, check_vm, seed_secrets, vm_inputs, vm_needs, with_disks
from roost.model.spec.runs.work import check_work
from roost.model.spec.service import HealthBlock, RestartBlock, UpdateBlock, check_of, restart_of, update_of
from roost.model.spec.units import Quantity, duration_ms, is_moment, read_moment
from roost.model.states import IsolationLevel, LimitsMode, Move, StderrMode, WhenFull, WhenLost, WorkloadKind

#: What these may be depends on the kind; without it they cannot be checked.
OF_A_KIND = (
    "command",
    "steps",
    "container",
    "volumes",
    "isolation",
    "run_as",
    "limits",
    "vm",
    "move",
    "count",
    "gang",
    "health",
    "schedule",
    "update",
    "restart",
)


class Document(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, rename={"condition": "if"}):
    name: str
    kind: WorkloadKind = WorkloadKind.JOB
    project: str = limits.DEFAULT_PROJECT
    image: str = ""
    container: ContainerBlock | None = None
    volumes: dict[str, str | VolumeBlock] = {}
    vm: VmBlock | None = None
    command: str | list[str] = ""
    steps: list[str | StepBlock] | None = None  # a line for the shell, or a block
    env: dict[str, str | FromSecret] = {}
    labels: dict[str, str] = {}
    ports: dict[str, int] = {}
    resources: dict[str, int | float | str] = {}
    count: int = 1
    gang: bool | Gang = False
    priority: int = limits.DEFAULT_PRIORITY
    retries: Retries | int | None = None
    timeout: int | float | str | None = None
    queue_timeout: int | float | str | None = None
    deadline: int | float | str | None = None
    expected: int | float | str | None = None
    grace: int | float | str | None = None
    when_full: WhenFull = WhenFull.QUEUE
    when_lost: WhenLost | None = None
    move: Move | None = None
    preemptible: bool | None = None
    fenced: bool = True
    placement: Placement | None = None
    after: list[str | AfterBlock] = []
    each: list[str | dict[str, str]] | None = None
    schedule: str | ScheduleBlock | None = None
    update: UpdateBlock | None = None
    restart: RestartBlock | None = None
    health: HealthBlock | None = None
    retention: int | float | str | None = None
    stderr: StderrMode = StderrMode.MERGE
    isolation: IsolationLevel | None = None
    run_as: str = ""
    limits: LimitsMode = LimitsMode.BEST_EFFORT  # from here on, `limits` is no module
    mask: bool = False  # values of its secrets, where its logs are shown
    inputs: list[InputBlock] = []
    outputs: list[str | OutputBlock] = []
    cache: files.CacheBlock | None = None
    condition: str = ""
    approve: ApproveBlock | None = None
    concurrency: ConcurrencyBlock | None = None
    until: str = ""
    template: TemplateUse | None = None  # what it was made from


def read_document(raw: object, path: str = "") -> Document:
    if not isinstance(raw, dict):
        raise Invalid(path or "$", "a workload is a mapping of fields such as name, command, resources")
    if isinstance(raw.get("each"), dict):
        raise Invalid(_join(path, "each"), NO_FILE)
    try:
        return read(raw, Document, path)
    except Invalid as error:
        raise all_of([*error.every, *_wrong_besides(raw, path)]) from None


def _wrong_besides(raw: dict[str, Any], path: str) -> tuple[Invalid, ...]:
    """What is wrong with the fields that can be read, beside others that cannot."""
    readable: dict[str, Any] = {"name": "unread"}
    for field in msgspec.structs.fields(Document):
        with suppress(msgspec.ValidationError):
            if field.encode_name in raw:
                readable[field.name] = msgspec.convert(raw[field.encode_name], field.type)
    if {"kind", "vm"} & (raw.keys() - readable.keys()):
        for name in ("kind", *OF_A_KIND):
            readable.pop(name, None)
    if "command" not in readable and "steps" not in readable:
        readable["command"] = "true"  # what it runs may be in a field that cannot be read
    try:
        check_document(Document(**readable), path)
    except Invalid as error:
        return error.every
    return ()


def check_document(document: Document, path: str = "") -> Policy:
    """Check every value of a document; what remains is the policy the core reads."""
    problems = Problems()
    check, kind = problems.check, document.kind
    check(check_name, document.name, _join(path, "name"))
    check(check_name, document.project, _join(path, "project"))
    check(check_image, document.image, kind, _join(path, "image"))
    check(check_container, document, _join(path, "container"))
    check(check_work, document, path)
    check(check_isolation, document, path)
    vm = check(check_vm, document, f"{path}." if path else "")
    check(_check_env, document, _join(path, "env"))
    check(check_labels, document.labels, _join(path, "labels"))
    check(check_outputs, document.outputs, _join(path, "outputs"))
    check(files.check_cache, document.cache, kind, _join(path, "cache"))
    check(check_of, document.health, document.ports, kind, _join(path, "health"))
    most = limits.COUNT_JOB_MAX if kind == WorkloadKind.JOB else limits.COUNT_SERVICE_MAX
    check(between, document.count, 1 if kind == WorkloadKind.JOB else 0, most, _join(path, "count"))
    check(between, document.priority, 0, 100, _join(path, "priority"))
    retries = Retries(max=document.retries) if isinstance(document.retries, int) else document.retries or Retries()
    check(check_retries, retries, _join(path, "retries"))
    when_lost = document.when_lost or (WhenLost.PIN if kind == WorkloadKind.VM else WhenLost.RESCHEDULE)
    deadline_ms, deadline_at_ms = check(_deadline, document.deadline, _join(path, "deadline")) or (0, 0)
    gang, gang_size = check(gang_of, document, _join(path, "gang")) or ("", 0)
    after = check(after_of, document.after, document.project, document.name, document.count, _join(path, "after"))
    inputs = check(check_inputs, document.inputs, document.project, document.name, _join(path, "inputs"))
    if not document.inputs and inputs is not None:
        inputs = vm_inputs(vm)
    check(_check_gates, document, after or (), path)
    policy = Policy(
        kind=kind,
        ask=check(_ask, document, vm, path),
        priority=document.priority,
        retries_max=retries.max,
        retry_on=retries.on,
        timeout_ms=check(_positive, document.timeout, _join(path, "timeout")),
        queue_timeout_ms=check(_positive, document.queue_timeout, _join(path, "queue_timeout")),
        deadline_ms=deadline_ms,
        when_full=document.when_full,
        when_lost=when_lost,
        fenced=document.fenced,
        grace_ms=check(_duration, document.grace, _default_grace_ms(kind), _join(path, "grace")),
        retention_ms=check(_duration, document.retention, limits.DEFAULT_RETENTION_MS, _join(path, "retention")),
        labels=tuple(sorted([*document.labels, *(f"{name}={value}" for name, value in document.labels.items())])),
        gang=gang,
        gang_size=gang_size,
        ports=tuple(document.ports),
        deadline_at_ms=deadline_at_ms,
        expected_ms=check(_positive, document.expected, _join(path, "expected")),
        preemptible=kind != WorkloadKind.VM if document.preemptible is None else document.preemptible,
        after=check(with_inputs, after or (), inputs or (), _join(path, "inputs")),
        schedule=check(schedule_of, document.schedule, kind, document.name, _join(path, "schedule")),
        update=check(update_of, document.update, kind, _join(path, "update")),
        restart=check(restart_of, document.restart, kind, _join(path, "restart")),
        inputs=inputs,
        condition=check(condition_of, document.condition, _join(path, "if")),
        approval_role=document.approve.role if document.approve is not None else "",
        until=check(until_of, document.until, kind, document.project, document.name, _join(path, "until")),
        move=document.move or (Move.LIVE if kind == WorkloadKind.VM else Move.COLD),
        concurrency_group=check(concurrency_of, document.concurrency, document.project, _join(path, "concurrency")),
    )
    problems.refuse()
    return policy


def _check_gates(document: Document, after: tuple[After, ...], path: str) -> None:
    blocks = {"if": document.condition, "approve": document.approve, "concurrency": document.concurrency}
    for field in (field for field, block in blocks.items() if block):
        check_gated(
            document.kind,
            _join(path, field),
            is_scheduled=document.schedule is not None,
            in_gang=isinstance(document.gang, Gang),
            by_element=field != "concurrency" and any(condition.each for condition in after),
        )


def encode_document(document: Document, path: str = "") -> bytes:
    packed = msgspec.msgpack.encode(document)
    if len(packed) > limits.DOCUMENT_BYTES_MAX:
        raise Invalid(path or "$", f"a workload may have {limits.DOCUMENT_BYTES_MAX} bytes; this one has {len(packed)}")
    return packed


def decode_document(packed: bytes) -> Document:
    return _DECODER.decode(packed)


def health_check_of(packed: bytes) -> tuple[str, str]:
    """The kind and the target of the health check in a stored document; both are empty if it has none."""
    health = decode_document(packed).health
    if health is None:
        return "", ""
    if health.http:
        return "http", health.http
    if health.tcp != "":
        return "tcp", str(health.tcp)
    command = health.command if isinstance(health.command, str) else " ".join(health.command)
    return "command", command[: limits.TEXT_LENGTH_MAX]


def secret_names(document: Document) -> list[str]:
    """All secrets that a run of a document needs on its node."""
    return sorted({*secrets_in(document).values()})


def secrets_in(document: Document) -> dict[str, str]:
    """The secrets of a document by its fields."""
    found = {f"env.{variable}": name for variable, name in secrets_of(document).items()}
    if document.container is not None and document.container.registry is not None:
        found["container.registry.password"] = document.container.registry.password.secret
    return found | seed_secrets(document.vm)


def secrets_of(document: Document) -> dict[str, str]:
    """The variables that are secrets."""
    return {name: value.secret for name, value in document.env.items() if isinstance(value, FromSecret)}


def may_have_secrets(packed: bytes) -> bool:
    """Whether a stored document can refer to a secret: the word is looked for, which is cheaper than decoding."""
    return _SECRET_KEY in packed


def separates_stderr(packed: bytes) -> bool:
    """Whether a run of a stored document has a second log. Few do: the word is looked for before decoding."""
    if _STDERR_KEY in packed:
        with suppress(msgspec.MsgspecError, UnicodeDecodeError):  # of another release: it is not run here
            return decode_document(packed).stderr == StderrMode.SEPARATE
    return False


def masked_secrets(packed: bytes) -> list[str]:
    """The names of the secrets whose values are masked in the logs of a stored document."""
    document = decode_document(packed) if _MASK_KEY in packed else None
    return sorted({*secrets_of(document).values()}) if document is not None and document.mask else []


def outputs_in(packed: bytes) -> list[OutputBlock]:
    """The outputs that a stored document asks for. Few do: the word is looked for before decoding."""
    return outputs_of(decode_document(packed).outputs) if _OUTPUTS_KEY in packed else []


def cache_in(packed: bytes) -> files.CacheBlock | None:
    """The cache of a stored document. Few have one: the word is looked for before decoding."""
    return decode_document(packed).cache if _CACHE_KEY in packed else None


def commands(document: Document) -> list[tuple[list[str], bool]]:
    """Argument vectors in order, and whether a failure is ignored."""
    if document.steps:
        blocks = [StepBlock(step) if isinstance(step, str) else step for step in document.steps]
        return [(["/bin/sh", "-c", step.run], step.ignore_failure) for step in blocks]
    if isinstance(document.command, str):
        return [(["/bin/sh", "-c", document.command], False)]
    return [(list(document.command), False)]


_DECODER = msgspec.msgpack.Decoder(Document)
_SECRET_KEY = msgspec.msgpack.encode("secret")
_CACHE_KEY, _OUTPUTS_KEY = map(msgspec.msgpack.encode, ("cache", "outputs"))
_STDERR_KEY = msgspec.msgpack.encode("stderr")
_MASK_KEY = msgspec.msgpack.encode("mask")


def _ask(document: Document, vm: VmBlock | None, path: str) -> Ask:
    placement = document.placement or Placement()
    here = _join(path, "placement")
    problems = Problems()
    check = problems.check
    check(check_text, placement.strategy, f"{here}.strategy")
    lasting, now = check(rules_of, placement.require, f"{here}.require") or ((), ())
    resources = check(resources_of, document.resources, _join(path, "resources")) or ()
    gpu_milli, gpu_count = check(devices_of, dict(resources).get("gpu", 0), _join(path, "resources.gpu")) or (0, 0)
    ask = Ask(
        resources=check(with_disks, resources, vm, _join(path, "resources")) or (),
        driver="qemu" if document.kind == WorkloadKind.VM else "container" if document.image else "process",
        pools=check(names_of, placement.pool, f"{here}.pool", "pools"),
        strategy=placement.strategy,
        require=lasting,
        require_now=now,
        prefer=check(preferences_of, placement.prefer, f"{here}.prefer"),
        tolerate=check(tolerations_of, placement.tolerate, f"{here}.tolerate"),
        regions=check(names_of, placement.region, f"{here}.region", "regions", is_name=False),
        gpu_milli=gpu_milli,
        gpu_count=gpu_count,
        gpu_models=check(names_of, placement.gpu_model, f"{here}.gpu_model", "models", is_name=False),
        ports=check(_ports, document, _join(path, "ports")),
        image=document.image,
        volumes=check(check_volumes, document.volumes, document.image, _join(path, "volumes")) or (),
        affinity=check(affinity_of, placement, document.project, document.name, document.count, here),
        vm=vm_needs(vm),
        isolation=isolation_needed(document),
        run_as=document.run_as,
        limits=limits_required(document),
    )
    problems.refuse()
    return ask


def _ports(document: Document, path: str) -> tuple[int, ...]:
    between(len(document.ports), 0, limits.PORTS_MAX, path, "ports")
    for name, port in document.ports.items():
        check_name(name, path)
        between(port, 0, limits.PORT_MAX, f"{path}.{name}")
    named = [port for port in document.ports.values() if port]
    if len(named) != len(set(named)):
        raise Invalid(path, "two names for one port")
    return tuple(document.ports.values())


def _deadline(value: Quantity | None, path: str) -> tuple[int, int]:
    if value is not None and is_moment(value):
        return 0, max(1, read_moment(value, path))
    return _positive(value, path), 0


def _check_env(document: Document, path: str) -> None:
    between(len(document.env), 0, limits.ENV_MAX, path, "variables")
    check_each(check_variable, [(path, item) for item in document.env.items()])
    between(len(secrets_in(document)), 0, limits.SECRETS_MAX, path, "secrets")


def check_labels(labels: dict[str, str], path: str) -> None:
    between(len(labels), 0, limits.LABELS_MAX, path, "labels")
    check_each(_check_label, [(path, item) for item in labels.items()])


def _check_label(item: tuple[str, str], path: str) -> None:
    name, value = item
    if not name:
        raise Invalid(path, "a label needs a name")
    check_text(name, path)
    check_text(value, f"{path}.{name}")


def _positive(value: Quantity | None, path: str) -> int:
    ms = duration_ms(value, path) if value is not None else 0
    if value is not None and not ms:
        raise Invalid(path, "this must be longer than nothing; leave it out for no limit")
    return ms


def _duration(value: Quantity | None, default: int, path: str) -> int:
    return default if value is None else duration_ms(value, path)


def _default_grace_ms(kind: WorkloadKind) -> int:
    return limits.DEFAULT_VM_GRACE_MS if kind == WorkloadKind.VM else limits.DEFAULT_GRACE_MS


def _join(path: str, field: str) -> str:
    return f"{path}.{field}" if path else field
