"""Copies into and out of runs, as the leader knows them: what is wanted of which node, limits, and when to give up.

No clock and no I/O: copying.py drives it. Nothing of it is stored. When another server leads, clients ask it for the
same copies again, and agents tell it the outcomes that they have.
"""

from collections.abc import Callable, Iterator

import msgspec

from roost.model.protocol import CopyOrder, CopyReport
from roost.model.records.files import FileSet

COPIES_MAX = 1_000  # of all nodes: 1 MB
PER_NODE_MAX = 16  # an agent carries out four at a time
PER_PRINCIPAL_MAX = 16
TAKEN_MS_MAX = 60_000  # until an agent has a copy: it may begin anew, or look for another leader
ASKED_MS_MAX = 60_000  # a client that no longer asks has gone
TIME_MS_MAX = 2 * 3_600_000 + 60_000  # after the agent gave up


class Copy(msgspec.Struct):
    """One copy. It is under way until there is a report, or a reason why there will be none."""

    order: CopyOrder
    project: str
    instance: str  # PROJECT/NAME.INDEX
    node: str
    principal: str
    begun_ms: int
    asked_ms: int
    offered_ms: int  # since when its node may ask for it
    files: FileSet | None = None  # what it moves, as far as that is known
    is_taken: bool = False
    report: CopyReport | None = None
    given_up: str = ""  # why the node will not do it

    @property
    def is_under_way(self) -> bool:
        return self.report is None and not self.given_up


class CopyTable:
    def __init__(self) -> None:
        self._copies: dict[str, Copy] = {}
        self._unwanted: set[str] = set()  # nodes that may carry out one that is no longer wanted

    @property
    def is_empty(self) -> bool:
        return not self._copies

    def find(self, id: str) -> Copy | None:
        return self._copies.get(id)

    def refusal(self, node: str, principal: str) -> str:
        """Why no other copy may begin now; empty: it may."""
        under_way = [copy for copy in self._copies.values() if copy.is_under_way]
        if len(self._copies) >= COPIES_MAX:
            return f"{COPIES_MAX:,} files are being copied"
        if sum(copy.node == node for copy in under_way) >= PER_NODE_MAX:
            return f"node {node} has {PER_NODE_MAX} copies under way"
        if sum(copy.principal == principal for copy in under_way) >= PER_PRINCIPAL_MAX:
            return f"{principal} has {PER_PRINCIPAL_MAX} copies under way"
        return ""

    def begin(self, copy: Copy) -> None:
        self._copies[copy.order.id] = copy

    def asked(self, id: str, now_ms: int) -> None:
        self._copies[id].asked_ms = now_ms

    def end(self, id: str) -> Copy | None:
        """Its client has what it wants, or wants it no more."""
        copy = self._copies.pop(id, None)
        if copy is not None and copy.report is None:
            self._unwanted.add(copy.node)
        return copy

    # nodes

    def is_due(self, node: str) -> bool:
        """Whether a node is to ask which copies are wanted."""
        return node in self._unwanted or any(
            copy.node == node and copy.is_under_way and not copy.is_taken for copy in self._copies.values()
        )

    def take(self, node: str) -> list[CopyOrder]:
        """All that are wanted of a node, which asks."""
        self._unwanted.discard(node)
        found = [copy for copy in self._copies.values() if copy.node == node and copy.is_under_way]
        for copy in found:
            copy.is_taken = True
        return [copy.order for copy in found]

    def offer_again(self, node: str, now_ms: int) -> None:
        """A session of a node began or ended. Its agent may be another process than before, which knows of no copy."""
        for copy in self._copies.values():
            if copy.node == node:
                copy.is_taken, copy.offered_ms = False, now_ms

    def reported(self, node: str, report: CopyReport, files: FileSet | None) -> Copy | None:
        """The outcome of a copy of this node; None: it is not wanted."""
        copy = self._copies.get(report.id)
        if copy is None or copy.node != node or copy.order.token != report.token or not copy.is_under_way:
            return None
        copy.report = report
        copy.files = files or copy.files
        return copy

    # time

    def expire(self, now_ms: int, is_live: Callable[[Copy], bool]) -> Iterator[Copy]:
        """Give up what cannot become anything; yields those that are gone altogether."""
        for id, copy in list(self._copies.items()):
            if copy.asked_ms + ASKED_MS_MAX <= now_ms:
                self.end(id)
                yield copy
            elif copy.is_under_way and not is_live(copy):
                self._give_up(copy, "ended")
            elif copy.is_under_way and not copy.is_taken and copy.offered_ms + TAKEN_MS_MAX <= now_ms:
                self._give_up(copy, "not_taken")
            elif copy.is_under_way and copy.begun_ms + TIME_MS_MAX <= now_ms:
                self._give_up(copy, "too_long")

    def _give_up(self, copy: Copy, why: str) -> None:
        copy.given_up = why
        self._unwanted.add(copy.node)

    def due_nodes(self) -> set[str]:
        waiting = {copy.node for copy in self._copies.values() if copy.is_under_way and not copy.is_taken}
        return waiting | self._unwanted

    def manifests(self, token: int) -> set[str]:
        """Sets of files that the node of an attempt may read, beside its inputs."""
        return {
            copy.order.digest for copy in self._copies.values()
            if copy.order.token == token and copy.order.digest and copy.is_under_way
        }  # fmt: skip

    def in_transit(self, project: str) -> list[FileSet]:
        """What the copies of a project move, for its quota."""
        return [copy.files for copy in self._copies.values() if copy.project == project and copy.files is not None]
