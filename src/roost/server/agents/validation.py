"""What an agent says, checked before the core hears it: names, amounts and documents within their limits."""

import re

import msgspec

from roost.files.manifest import PATH_BYTES_MAX
from roost.model import limits
from roost.model.errors import Invalid
from roost.model.keys import STDERR_SUFFIX
from roost.model.protocol import Beat, CopyProblem, CopyReport, Hello, Report, Run, Usage, version_refusal
from roost.model.records.files import FileSet, InputFailure, InputProblem, OutputProblem, Outputs, covers
from roost.model.records.node import ENFORCEABLE, Facts
from roost.model.records.result import Result, ResultProblem, problem_of
from roost.model.records.usage import RunUsage
from roost.model.records.workload import Policy
from roost.model.spec.document import check_document, check_labels, decode_document
from roost.model.spec.files import DIGEST, check_place
from roost.model.spec.names import check_name, check_node_name, check_text
from roost.model.spec.placement import taints_of
from roost.model.states import Power

RUNS_MAX = 8_192  # attempts one agent may hold: as many as its keeper keeps
DRIVERS_MAX = 16
TASKS_MAX = 16  # background tasks of an agent: it has six
STATES = frozenset({"starting", "running", "ended"})
CAUSES = frozenset({"", "exited", "timed_out", "stopped", "lease", "error", "unhealthy"})
POWERS = frozenset({"", *Power})
SIGNAL_MAX = 64
COPY_TEXT_MAX = 10_000  # of the outcome of a copy: a path, and what is wrong with it
GROWN_MAX = 100
AMOUNT_MAX = {"cpu": limits.CPU_MILLI_MAX, "memory": limits.BYTES_MAX, "disk": limits.BYTES_MAX}
RUN_BOUNDS = {
    "token": (1, 1 << 62), "attempt": (1, limits.COUNTABLE_MAX), "serial": (0, 1 << 62),
    "submitted_ms": (0, 1 << 53), "version": (1, limits.COUNTABLE_MAX),
}  # fmt: skip
HTTP_STATUS_MAX = 999
REPORT_BOUNDS = {
    "started_ago_ms": (0, limits.DURATION_MS_MAX), "ended_ago_ms": (0, limits.DURATION_MS_MAX),
    "code": (0, limits.EXIT_CODE_MAX), "signal": (0, SIGNAL_MAX), "step": (0, limits.STEPS_MAX),
    "log_size": (0, limits.BYTES_MAX), "stderr_size": (0, limits.BYTES_MAX), "power_serial": (0, 1 << 62),
    "pulled_ms": (0, limits.DURATION_MS_MAX),
}  # fmt: skip
USAGE_BOUNDS = {
    "cpu_ms": (0, limits.DURATION_MS_MAX * 1_000), "memory_max": (0, limits.BYTES_MAX),
    "io_read": (0, limits.BYTES_MAX), "io_written": (0, limits.BYTES_MAX),
}  # fmt: skip
# One spelling for each log: no zeros in front, and no digits of other scripts, which \d would take.
_NUMBER = "0|[1-9][0-9]{0,%d}"
LOG_NAME = re.compile(  # PROJECT/NAME/SERIAL/INDEX.ATTEMPT, and the suffix of a separate stderr
    r"([A-Za-z0-9_-]{1,63})/([A-Za-z0-9_-]{1,63})"
    rf"/({_NUMBER % 18})/({_NUMBER % 6})\.({_NUMBER % 6})(?:{re.escape(STDERR_SUFFIX)})?"
)


def check_hello(hello: Hello) -> None:
    """Refuse a registration that the core could not process. Raises Invalid."""
    if refusal := version_refusal(hello.protocol, hello.software, mine="server", other="agent"):
        raise Invalid("protocol", refusal)
    check_text(hello.software, "software")
    check_node_name(hello.node, "node")
    if not hello.identity:
        raise Invalid("identity", "an agent says which machine it is")
    check_text(hello.identity, "identity")
    check_facts(hello.facts)
    if len(hello.runs) > RUNS_MAX:
        raise Invalid("runs", f"an agent may hold {RUNS_MAX:,} attempts; this one has {len(hello.runs):,}")
    seen: set[int] = set()
    for run, report in hello.runs:
        _check_run(run)
        _check_report(report)
        if run.token != report.token or run.token in seen:
            raise Invalid("runs", f"attempt {run.token} is reported twice, or under another's token")
        seen.add(run.token)


def check_facts(facts: Facts) -> None:
    if len(facts.resources) > limits.RESOURCE_KINDS_MAX:
        raise Invalid("resources", f"a node may offer {limits.RESOURCE_KINDS_MAX} kinds of resources")
    for name, amount in facts.resources.items():
        check_name(name, f"resources.{name:.80}")
        most = AMOUNT_MAX.get(name, limits.COUNTABLE_MAX)
        if not 0 <= amount <= most:
            raise Invalid(f"resources.{name}", f"this must be 0 to {most:,}, not {amount:,}")
    check_labels(facts.labels, "labels")
    for field in ("zone", "rack", "region", "arch", "gpu_model", "address", "user"):
        check_text(getattr(facts, field), field)
    if not 1 <= facts.port_first <= facts.port_last - limits.PORTS_MAX + 1 <= limits.PORT_MAX - limits.PORTS_MAX + 1:
        message = f"ports go from 1 to {limits.PORT_MAX}, {limits.PORTS_MAX} at least: a workload may ask for that"
        raise Invalid("port_first", message)
    taints_of(list(facts.taints), "taints")
    check_name(facts.pool, "pool")
    if len(facts.drivers) > DRIVERS_MAX:
        raise Invalid("drivers", f"a node may have {DRIVERS_MAX} drivers; this one has {len(facts.drivers)}")
    for driver in facts.drivers:
        check_name(driver, "drivers")
    if len(facts.vm) > limits.VM_OFFERS_MAX:
        raise Invalid("vm", f"a node may offer {limits.VM_OFFERS_MAX} images and bridges to virtual machines")
    for offer in facts.vm:
        check_name(offer.partition("/")[2], "vm")
    if unknown := set(facts.enforces) - set(ENFORCEABLE):
        raise Invalid("enforces", f"a node can enforce {', '.join(ENFORCEABLE)}, not {min(unknown)!r:.40}")


def check_beat(beat: Beat) -> None:
    if beat.sequence < 0 or beat.generation < 0:
        raise Invalid("sequence", "counters only grow, from 0 on")
    if len(beat.reports) > RUNS_MAX:
        raise Invalid("reports", f"an agent may hold {RUNS_MAX:,} attempts; this beat tells of {len(beat.reports):,}")
    for report in beat.reports:
        _check_report(report)
    if beat.usage is not None:
        _check_usage(beat.usage)


def _check_usage(usage: Usage) -> None:
    _between(len(usage.task_restarts), 0, TASKS_MAX, "usage.task_restarts")
    for task, count in usage.task_restarts.items():
        check_name(task, "usage.task_restarts")
        _between(count, 0, limits.COUNTABLE_MAX, f"usage.task_restarts.{task}")
    _between(usage.logs_stuck_ms, 0, limits.DURATION_MS_MAX, "usage.logs_stuck_ms")
    _between(len(usage.pulling), 0, limits.PULLS_MAX, "usage.pulling")
    for percent in usage.pulling.values():
        _between(percent, 0, 100, "usage.pulling")
    _between(len(usage.images), 0, limits.IMAGES_REPORTED_MAX, "usage.images")


def check_copy_report(report: CopyReport) -> None:
    if report.problem is not None and report.problem not in set(CopyProblem):
        raise Invalid("problem", f"a copy does not fail because of {report.problem!r:.40}")
    _between(len(report.message), 0, COPY_TEXT_MAX, "message")
    _between(len(report.place.encode()), 0, PATH_BYTES_MAX, "place")
    _between(len(report.grown), 0, GROWN_MAX, "grown")
    for path in report.grown:
        _between(len(path.encode()), 0, PATH_BYTES_MAX, "grown")
    if report.outputs is not None:
        _check_outputs(report.outputs, "outputs")


def _check_run(run: Run) -> None:
    """An attempt may be adopted, so its document must be one that could be submitted."""
    path = f"runs[{run.token}]"
    try:
        document = decode_document(run.document)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise Invalid(f"{path}.document", "this is not a workload's document") from None
    policy = check_document(document, path)
    if run.workload != f"{document.project}/{document.name}":
        raise Invalid(f"{path}.workload", f"its document is of {document.project}/{document.name}")
    _between(run.index, 0, document.count - 1, f"{path}.index")
    _check_bounds(run, RUN_BOUNDS, path)
    _check_env(run, f"{path}.env")
    _check_inputs(run, policy, f"{path}.inputs")
    if run.power not in ("", Power.STOPPED):
        raise Invalid(f"{path}.power", f"a virtual machine begins stopped, or boots; not {run.power!r:.40}")
    _between(len(run.devices), 0, limits.GPUS_MAX, f"{path}.devices")
    for device in run.devices:
        _between(device, 0, limits.GPUS_MAX - 1, f"{path}.devices")
    if run.ports and len(run.ports) != len(document.ports):
        raise Invalid(f"{path}.ports", f"its document names {len(document.ports)} ports, not {len(run.ports)}")
    for port in run.ports:
        _between(port, 1, limits.PORT_MAX, f"{path}.ports")


def _check_env(run: Run, path: str) -> None:
    """An adopted attempt gives these variables to the next attempt."""
    _between(len(run.env), 0, limits.ENV_MAX, path)
    for name, value in run.env:
        if not name or "=" in name or "\0" in name or "\0" in value:
            raise Invalid(path, f"{name!r:.60} is not a variable that can be passed to a program")
        _between(len(name) + len(value), 1, limits.COMMAND_BYTES_MAX, path)


def _check_report(report: Report) -> None:
    path = f"reports[{report.token}]"
    if report.state not in STATES:
        raise Invalid(f"{path}.state", f"an agent reports starting, running or ended, not {report.state!r:.40}")
    if report.cause not in CAUSES:
        raise Invalid(f"{path}.cause", f"an attempt does not end by {report.cause!r:.40}")
    _check_bounds(report, REPORT_BOUNDS, path)
    check_text(report.error, f"{path}.error")
    check_text(report.image, f"{path}.image")
    if report.power not in POWERS:
        raise Invalid(f"{path}.power", f"a virtual machine is running, paused or stopped, not {report.power!r:.40}")
    check_text(report.power_problem, f"{path}.power_problem")
    if report.result is not None:
        _check_result(report.result, f"{path}.result")
    if report.inputs_failed is not None:
        _check_inputs_failed(report.inputs_failed, f"{path}.inputs_failed")
    if report.outputs is not None:
        _check_outputs(report.outputs, f"{path}.outputs")
    if report.usage is not None:
        _check_bounds(report.usage, USAGE_BOUNDS, f"{path}.usage")


def _check_result(result: Result, path: str) -> None:
    """Its agent has checked it; what is not JSON would break every answer that it is part of."""
    if result.problem is not None and result.problem not in set(ResultProblem):
        raise Invalid(f"{path}.problem", f"a result does not lack because of {result.problem!r:.40}")
    if (result.problem is None) != bool(result.data) or (result.data and problem_of(result.data)):
        raise Invalid(f"{path}.data", f"a result is JSON of at most {limits.RESULT_BYTES_MAX:,} bytes")
    _between(result.size, 0, limits.BYTES_MAX, f"{path}.size")


def _check_inputs_failed(failure: InputFailure, path: str) -> None:
    if failure.problem not in set(InputProblem):
        raise Invalid(f"{path}.problem", f"inputs do not fail because of {failure.problem!r:.40}")
    _between(len(failure.path.encode()), 0, limits.FILE_PATH_BYTES_MAX, f"{path}.path")
    _between(failure.status, 0, HTTP_STATUS_MAX, f"{path}.status")
    check_text(failure.detail, f"{path}.detail")


def _check_outputs(outputs: Outputs, path: str) -> None:
    if outputs.files is not None:
        _check_file_set(outputs.files, f"{path}.files")
    _between(len(outputs.gaps), 0, limits.OUTPUT_GAPS_MAX, f"{path}.gaps")
    _between(outputs.more_gaps, 0, limits.COUNTABLE_MAX, f"{path}.more_gaps")
    for gap in outputs.gaps:
        if gap.problem not in set(OutputProblem):
            raise Invalid(f"{path}.gaps", f"outputs do not lack because of {gap.problem!r:.40}")
        _between(len(gap.path), 0, limits.FILE_PATH_BYTES_MAX, f"{path}.gaps.path")


def _check_file_set(files: FileSet, path: str) -> None:
    if not DIGEST.fullmatch(files.digest):
        raise Invalid(f"{path}.digest", f"a digest is sha256: and 64 hexadecimal digits, not {files.digest!r:.80}")
    _between(files.files, 0, limits.COUNTABLE_MAX, f"{path}.files")
    _between(files.size, 0, limits.BYTES_MAX, f"{path}.size")


def _check_inputs(run: Run, policy: Policy, path: str) -> None:
    """An adopted attempt gives these files to the next attempt, which must not lack one that its document names."""
    _between(len(run.inputs), 0, limits.INPUTS_MAX + limits.INPUT_FOLDERS_MAX, path)
    for given in run.inputs:
        check_place(given.to, path)
        if given.digest:
            _check_file_set(FileSet(given.digest), path)
    for item in policy.inputs:
        if not item.optional and not any(covers(item, given) for given in run.inputs):
            raise Invalid(path, f"its document has an input {item.to or '.'!r:.60}, which is not among these")


def _check_bounds(message: Run | Report | RunUsage, bounds: dict[str, tuple[int, int]], path: str) -> None:
    for name, (least, most) in bounds.items():
        _between(getattr(message, name) or 0, least, most, f"{path}.{name}")


def _between(number: int, least: int, most: int, path: str) -> None:
    if not least <= number <= most:
        raise Invalid(path, f"this must be {least} to {most:,}, not {number:,}")
