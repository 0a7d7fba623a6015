"""An instance: one run of a workload on one node. An attempt carries a token; tokens only grow.

There may be hundreds of thousands of these, and none can be part of a cycle: `gc=False` keeps them out of the
garbage collector's way, which would otherwise look at all of them again and again.
"""

import msgspec

from roost.model.keys import InstanceKey
from roost.model.reasons.reason import Reason
from roost.model.reasons.subjects import HealthEvidence, Principal
from roost.model.records.files import InputFiles, Outputs
from roost.model.records.result import Result
from roost.model.records.transition import InstanceStory
from roost.model.records.usage import RunUsage
from roost.model.states import InstanceState, Power, PowerAction


class Decision(msgspec.Struct, forbid_unknown_fields=True, frozen=True, array_like=True):
    """Why an instance went where it went: the runners-up with their scores, best first."""

    strategy: str
    eligible: int
    considered: int
    candidates: tuple[tuple[str, int], ...]  # (node, score); the first was taken, a higher score is better
    with_image: tuple[str, ...] = ()  # those of the candidates that had the image of its container


class PowerState(msgspec.Struct, forbid_unknown_fields=True, frozen=True, array_like=True, gc=False):
    """The power of a virtual machine: what is wanted, and what its node reports. Set by core/lifecycle/power.py alone.

    Serials are those of tokens, which only grow, also over a loss of the store: a node tells new commands by them.
    """

    wanted: Power = Power.RUNNING
    reported: Power | None = None  # None: this attempt has not reported it
    action: PowerAction | None = None  # the last command; None: this attempt got none
    serial: int = 0  # of the last command
    done: int = 0  # the last serial that its node has carried out, or has failed to
    problem: str = ""  # why that failed
    by: Principal = ""  # who gave the last command; nothing: the machine changed by itself since
    asked_ms: int = 0  # when that was
    since_ms: int = 0  # since when the power state is the reported one
    grace_ms: int = 0  # of the last command

    @property
    def is_pending(self) -> bool:
        """The last command has not been carried out."""
        return self.serial > self.done

    @property
    def begins_stopped(self) -> bool:
        """Of an attempt that was not commanded: it was switched off before it came here."""
        return self.wanted != Power.RUNNING and not self.serial and self.reported is None

    @property
    def expected(self) -> Power:
        """The power state once what is pending is carried out."""
        return self.wanted if self.is_pending or self.reported is None else self.reported


class Instance(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, gc=False):
    """An instance as it is stored. It exists from its first placement on; before that the workload stands for it."""

    workload: str  # the workload's key, PROJECT/NAME
    index: int
    state: InstanceState = InstanceState.QUEUED
    attempt: int = 0
    token: int = 0
    node: str = ""
    since_ms: int = 0  # when it came into this state
    started_ms: int = 0  # of this attempt
    finished_ms: int = 0
    not_before_ms: int = 0  # a retry waits until then
    exit_code: int | None = None
    signal: int | None = None
    log_size: int | None = None  # bytes in the log of this attempt in the end; None: it has not ended, or is lost
    stderr_size: int | None = None  # likewise of the log of its stderr; None: also, it has none
    result: Result | None = None  # of this attempt; set by core/state/results.py alone
    outputs: Outputs | None = None  # of this attempt; set by core/state/files.py alone
    input_files: tuple[InputFiles, ...] = ()  # of an element: outputs of the elements it waited for; likewise
    step: int = 0
    reason: Reason | None = None  # why it is in this state
    losses: int = 0  # attempts that ended because a node was lost
    failures: int = 0  # attempts that ended by themselves and were tried again
    requeue_after_stop: bool = False  # it is being stopped in order to run elsewhere
    prefilled_behind: int = 0  # the attempt whose room it gets when that has ended; 0: it has room of its own
    preempted_by: str = ""  # the workload for which it was stopped last
    version: int = 1  # of its workload: which it runs, or is to run
    ready_since_ms: int = 0  # since when it is ready to be used; 0: it is not
    health_failure: HealthEvidence | None = None  # of a check that fails now
    blocked_on_dependency: bool = False  # of an array: its element of the workload before has not come so far
    devices: tuple[int, ...] = ()  # the GPUs it was given
    ports: tuple[int, ...] = ()  # the ports it was given, in the order of their names
    image: str = ""  # of a container: the digest of what this attempt runs
    usage: RunUsage | None = None  # of this attempt; None: it has not ended, or its end was not reported
    power: PowerState | None = None  # of a virtual machine; None: it was never reported or commanded
    home: str = ""  # of a virtual machine: the node on which it ran last, where its disks are
    decision_packed: bytes = b""  # packed, because it is stored and shown but never read by a rule
    story: InstanceStory = ()

    @property
    def key(self) -> InstanceKey:
        return InstanceKey(f"{self.workload}.{self.index}")

    @property
    def decision(self) -> Decision | None:
        return _DECISIONS.decode(self.decision_packed) if self.decision_packed else None


_DECISIONS = msgspec.msgpack.Decoder(Decision)
pack_decision = msgspec.msgpack.Encoder().encode
