"""What must be true after a chaos run: each check takes the evidence and returns what is wrong. None asks a server."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import msgspec

from roost.model.states import FINISHED, InstanceState
from roost_lab.chaos.jobs import Entry, Job


class Ended(msgspec.Struct, frozen=True):
    """A job as the servers describe it at the end."""

    state: str
    attempt: int
    message: str = ""


class SeenChange(msgspec.Struct, frozen=True):
    """A change of an instance, or the end of its workload (attempt 0), as a stream of changes delivered it."""

    revision: int
    job: str
    state: str
    attempt: int


class LogRead(msgspec.Struct, frozen=True):
    """A log as one server answered it: how many bytes of the attempt, and what is wrong with them."""

    server: str
    job: str
    attempt: int
    size: int
    problem: str = ""


class Evidence(msgspec.Struct):
    """Everything that was asked, answered, and written down by the jobs themselves."""

    jobs: dict[str, Job] = {}
    accepted: list[str] = []
    refused: dict[str, str] = {}  # submissions that were answered with a no: nothing may have come of them
    unknown: list[str] = []  # submissions without an answer, or whose outcome was answered as unknown
    cancelled: list[str] = []  # jobs whose cancel was answered with yes
    ledger: list[Entry] = []
    ended: dict[str, Ended] = {}
    changes: list[SeenChange] = []
    resets: int = 0
    listed: dict[str, str] = {}  # job -> the end state that a list showed after a reset
    logs: list[LogRead] = []
    whys: int = 0
    whys_refused: int = 0
    whys_wrong: list[str] = []
    allocated: dict[str, int] = {}  # node -> what it counts as used after everything has ended


class CheckResult(msgspec.Struct, frozen=True):
    check: str
    checked: int
    wrong: list[str]


def check_all(evidence: Evidence) -> list[CheckResult]:
    return [check(evidence) for check in CHECKS]


def acknowledged(evidence: Evidence) -> CheckResult:
    """What was accepted exists; what was refused does not."""
    wrong = [f"{name} was accepted and does not exist" for name in evidence.accepted if name not in evidence.ended]
    for name, message in evidence.refused.items():
        if name in evidence.ended:
            wrong.append(f"{name} was refused ({message}) and exists")
    return CheckResult("acknowledgements", len(evidence.accepted) + len(evidence.refused), wrong)


def ran(evidence: Evidence) -> CheckResult:
    """Every job ends as it should, has really run to its end, and no attempt began twice."""
    begun = Counter((entry.job, entry.attempt) for entry in evidence.ledger if entry.what == "begin")
    finished = {(entry.job, entry.attempt) for entry in evidence.ledger if entry.what == "end"}
    wrong = [f"attempt {attempt} of {job} began {times} times" for (job, attempt), times in begun.items() if times > 1]
    for name, ended in evidence.ended.items():
        if name in evidence.cancelled and ended.state == InstanceState.CANCELLED:
            continue
        if ended.state != InstanceState.SUCCEEDED:
            wrong.append(f"{name} is {ended.state} after attempt {ended.attempt}: {ended.message}")
        elif (name, ended.attempt) not in finished:
            wrong.append(f"{name} succeeded with attempt {ended.attempt}, which never wrote down its end")
    known = {entry.job for entry in evidence.ledger}
    wrong += [f"{name} ran and does not exist" for name in sorted(known - set(evidence.ended))]
    return CheckResult("runs", len(evidence.ended), wrong)


def overlaps(evidence: Evidence) -> CheckResult:
    """No attempt of a fenced job began while another one was alive."""
    wrong = [
        f"attempt {entry.attempt} of {entry.job} began on {entry.node} while another attempt was alive"
        for entry in evidence.ledger
        if entry.what == "overlap"
    ]
    begun = [entry for entry in evidence.ledger if entry.what == "begin" and evidence.jobs[entry.job].fenced]
    return CheckResult("overlaps", len(begun), wrong)


def log_bytes(evidence: Evidence) -> CheckResult:
    """Every server has every byte of the log of an attempt that ran to its end, and no other byte."""
    wrong = [
        f"{read.server} on the log of {read.job}, attempt {read.attempt}: {read.problem}"
        for read in evidence.logs
        if read.problem
    ]
    return CheckResult("log bytes", sum(read.size for read in evidence.logs), wrong)


def watched(evidence: Evidence) -> CheckResult:
    """A stream of changes has each change once, in order, and the end of every job, or a list after a reset has it."""
    wrong = []
    revisions = [change.revision for change in evidence.changes]
    for before, after in zip(revisions, revisions[1:], strict=False):
        if after < before:
            wrong.append(f"revision {after} came after {before}")
    for change, times in Counter(evidence.changes).items():
        if times > 1:
            wrong.append(f"revision {change.revision} of {change.job} came {times} times")
    last: dict[str, SeenChange] = {}
    for change in evidence.changes:
        known = last.get(change.job)
        if known is not None and known.state in FINISHED and change.state != known.state:
            wrong.append(f"{change.job} was {known.state} and became {change.state} in revision {change.revision}")
        last[change.job] = change
    for name, ended in evidence.ended.items():
        seen = last[name].state if name in last else ""
        if ended.state not in (seen, evidence.listed.get(name)):
            wrong.append(f"{name} is {ended.state}, the stream had {seen or 'nothing'}")
    return CheckResult("watch streams", len(evidence.changes), wrong)


def explained(evidence: Evidence) -> CheckResult:
    """`why` has an answer for every job, or says that there is none for now."""
    return CheckResult("why", evidence.whys, evidence.whys_wrong)


def freed(evidence: Evidence) -> CheckResult:
    """When everything has ended, no node counts anything as used."""
    wrong = [f"{node} still counts {used} as used" for node, used in evidence.allocated.items() if used]
    return CheckResult("capacity", len(evidence.allocated), wrong)


CHECKS: Sequence[Callable[[Evidence], CheckResult]] = (
    acknowledged, ran, overlaps, log_bytes, watched, explained, freed
)  # fmt: skip


def counts_of(evidence: Evidence) -> Mapping[str, int]:
    begun = [entry for entry in evidence.ledger if entry.what == "begin"]
    return {
        "accepted": len(evidence.accepted),
        "refused": len(evidence.refused),
        "unknown": len(evidence.unknown),
        "cancelled": len(evidence.cancelled),
        "attempts": len(begun),
        "changes": len(evidence.changes),
        "resets": evidence.resets,
        "logs": len(evidence.logs),
        "log_bytes": sum(read.size for read in evidence.logs),
        "whys": evidence.whys,
        "whys_refused": evidence.whys_refused,
    }


def log_problem(data: bytes, expected: bytes) -> str:
    """How a log differs from what its job wrote; empty if it does not."""
    if data == expected:
        return ""
    if expected.startswith(data):
        return f"{len(data)} of {len(expected)} bytes, and it is called complete"
    at = next((at for at, (one, other) in enumerate(zip(data, expected, strict=False)) if one != other), len(expected))
    return f"{len(data)} bytes for {len(expected)}, wrong from byte {at} on"
