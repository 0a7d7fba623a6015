"""Which runs of an agent wait for files: inputs to be fetched, outputs to be collected. No clock, no I/O."""

from collections.abc import Iterable

import msgspec

from roost.drivers.qemu.host import MachineWanted
from roost.model.protocol import Run
from roost.model.records.files import OutputGap, OutputProblem, Outputs, RunInput
from roost.model.records.secret import Hidden
from roost.model.spec.document import cache_in, outputs_in
from roost.model.spec.files import CacheBlock, OutputBlock, OutputsWhen
from roost.model.spec.runs.container import ImageWanted
from roost.ports.driver import Ended, Machine, RunRequest, StopReason

FETCH_MS_MAX = 2 * 3_600_000  # 64 GiB, the most of one input, at 10 MB/s
COLLECT_MS_MAX = 2 * 3_600_000  # likewise
GAPS_BYTES_MAX = 1_500  # of one attempt: a hello with 4,096 of them has 6 MiB of gaps, beside 48 MiB of documents
GAP_BYTES = 32  # of a gap beside its path


class FetchInputs(msgspec.Struct, frozen=True):
    """Make the work directory of a run with its inputs in it; answer with `fetched`. What is there is a leftover.

    Its image is on the node by then as well.
    """

    token: int
    inputs: tuple[RunInput, ...]
    folder: str
    image: ImageWanted | None = None
    password: Hidden = msgspec.field(default_factory=Hidden)
    cache: CacheBlock | None = None  # what it has in the cache comes as well
    env: tuple[tuple[str, str], ...] = ()  # for the key of the cache, without secrets
    owner: int | None = None  # the user of the run; None: our own
    machine: MachineWanted | None = None  # whose files are looked for when its inputs are there


class LeaveInputs(msgspec.Struct, frozen=True):
    """The run is not to begin: fetch no more of its inputs, and do not answer."""

    token: int


class CollectOutputs(msgspec.Struct, frozen=True):
    """Store what these patterns match in the work directory of a run that has ended; answer with `collected`."""

    token: int
    outputs: tuple[OutputBlock, ...]
    folder: str
    cache: CacheBlock | None = None  # to be saved after the outputs, which are answered also without it


class LeaveOutputs(msgspec.Struct, frozen=True):
    """The end of the run is reported without them: do not answer."""

    token: int


FileEffect = FetchInputs | LeaveInputs | CollectOutputs | LeaveOutputs


class FileProgress:
    """The runs that have files, each at most in one of three places.

    `fetching`: its inputs are on their way. `held`: the driver does not have it, though its own inputs are there.
    `collecting`: its process has ended, and its outputs are on their way.
    """

    def __init__(self) -> None:
        self.fetching: dict[int, RunRequest] = {}
        self.held: dict[int, RunRequest] = {}
        self.collecting: dict[int, Ended] = {}
        self.outputs: dict[int, list[OutputBlock]] = {}  # of every run that has some, until it is forgotten
        self.caches: dict[int, CacheBlock] = {}  # likewise
        self._stored: dict[int, Outputs] = {}  # of those that are collected: the cache is still being saved
        self._until: dict[int, int] = {}  # when to give up, of those that are fetched or collected

    def remember(self, run: Run) -> None:
        """Note the outputs of a run. A document that cannot be read has none: it is never run."""
        try:
            outputs, cache = outputs_in(run.document), cache_in(run.document)
        except msgspec.MsgspecError:
            return
        if outputs:
            self.outputs[run.token] = outputs
        if cache is not None:
            self.caches[run.token] = cache

    def has_files_after(self, token: int) -> bool:
        """Whether a run may leave files that take time after its end."""
        return token in self.outputs or token in self.caches

    def is_before_driver(self, token: int) -> bool:
        return token in self.fetching or token in self.held

    def hold(self, token: int, request: RunRequest, fetch_until_ms: int | None) -> None:
        if fetch_until_ms is None:
            self.held[token] = request
        else:
            self.fetching[token] = request
            self._until[token] = fetch_until_ms

    def fetched(self, token: int, image: str, machine: Machine | None = None) -> None:
        """`image`: by which its engine knows the image of its container. `machine`: with its files."""
        del self._until[token]
        request = self.held[token] = self.fetching.pop(token)
        if request.container is not None and image:
            create = {**request.container.create, "Image": image}
            container = msgspec.structs.replace(request.container, create=create)
            self.held[token] = msgspec.structs.replace(request, container=container)
        if machine is not None:
            self.held[token] = msgspec.structs.replace(request, machine=machine)

    def taken(self, token: int) -> RunRequest:
        """A run that the driver does not have leaves: it is given to the driver, or has ended."""
        self._until.pop(token, None)
        request = self.fetching.pop(token, None)
        return request if request is not None else self.held.pop(token)

    def wanted(self, ended: Ended) -> list[OutputBlock]:
        """What to collect of a run that ran and has ended this way.

        Nothing of a run whose node or server no longer counts it, or that was stopped on request: another attempt
        takes its place, or none is wanted.
        """
        if ended.cause == "stopped" and ended.why is not StopReason.UNHEALTHY or ended.cause in ("lease", "error"):
            return []
        is_success = ended.cause == "exited" and ended.code == 0
        return [
            output for output in self.outputs.get(int(ended.id), ()) if is_success or output.when != OutputsWhen.SUCCESS
        ]

    def saved_after(self, ended: Ended) -> CacheBlock | None:
        """The cache of a run that ended this way: only success leaves files that others can use."""
        return self.caches.get(int(ended.id)) if ended.cause == "exited" and ended.code == 0 else None

    def stored(self, token: int, outputs: Outputs) -> None:
        if token in self.collecting:
            self._stored[token] = outputs

    def collect(self, ended: Ended, now: int) -> None:
        self.collecting[int(ended.id)] = ended
        self._until[int(ended.id)] = now + COLLECT_MS_MAX

    def hurry(self, token: int, until_ms: int) -> None:
        """The end of this run is awaited: its outputs have until then."""
        self._until[token] = min(until_ms, self._until[token])

    def collected(self, token: int, outputs: Outputs | None) -> Ended:
        """The end of a run, complete. None: its outputs are not wanted."""
        del self._until[token]
        self._stored.pop(token, None)
        outputs = outputs if token in self.outputs else None
        return msgspec.structs.replace(self.collecting.pop(token), outputs=outputs and _bounded(outputs))

    def not_stored(self, token: int) -> Outputs:
        """What is known of outputs whose time is over."""
        if token in self._stored:
            return self._stored[token]
        wanted = self.wanted(self.collecting[token])
        return Outputs(gaps=tuple(OutputGap(OutputProblem.NOT_STORED, block.path, block.required) for block in wanted))

    def forget(self, token: int) -> None:
        self.outputs.pop(token, None)
        self.caches.pop(token, None)

    # time

    def next_ms(self, lease_until_ms: int) -> int | None:
        times = list(self._until.values())
        if any(request.leased for request in self._before_driver()):
            times.append(lease_until_ms)
        return min(times, default=None)

    def overdue(self, now: int) -> list[int]:
        return [token for token, until in self._until.items() if until <= now]

    def leased(self) -> list[int]:
        """Those that the driver does not have, and that end with the lease."""
        return [int(request.id) for request in self._before_driver() if request.leased]

    def _before_driver(self) -> Iterable[RunRequest]:
        return (request for requests in (self.fetching, self.held) for request in requests.values())


def _bounded(outputs: Outputs) -> Outputs:
    """With as many gaps as a report may have; the worst come first."""
    room = GAPS_BYTES_MAX
    for count, gap in enumerate(outputs.gaps):
        room -= len(gap.path.encode()) + GAP_BYTES
        if room < 0:
            kept = max(count, 1)
            return Outputs(outputs.files, outputs.gaps[:kept], outputs.more_gaps + len(outputs.gaps[kept:]))
    return outputs
