"""Keepers of `roost up` that end by themselves are started again, with pauses that grow."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from roost.cli.common.output import echo_err
from roost.cli.start.local_nodes import KeeperHandle

if TYPE_CHECKING:  # asyncio takes longer to import than `roost up --help` to print
    import asyncio

PAUSE_S_MIN = 0.5
PAUSE_S_MAX = 30.0
PROVEN_S = 60.0  # a keeper that lived this long is started again without a longer pause


class KeeperWatch:
    """`keepers` always has those that run, so that their owner can end them all."""

    def __init__(
        self, loop: "asyncio.AbstractEventLoop", keepers: list[KeeperHandle],
        start: Callable[[str], KeeperHandle] | None,
        is_stopping: Callable[[], bool],
    ) -> None:  # fmt: skip
        self._loop = loop
        self._keepers = keepers
        self._start = start
        self._pauses: dict[str, float] = {}
        self._is_stopping = is_stopping

    def add(self, keeper: KeeperHandle) -> None:
        self._loop.add_reader(keeper.pidfd, self._has_ended, keeper, self._loop.time())

    def _has_ended(self, keeper: KeeperHandle, began_s: float) -> None:
        self._loop.remove_reader(keeper.pidfd)
        how = keeper.reap()
        echo_err(f"the keeper of {keeper.name} has {how}: {keeper.last_output() or 'no output'}")
        if self._start is None:
            echo_err(f"its work moves to other nodes; restart `roost up` to bring {keeper.name} back")
        elif not self._is_stopping():
            self._start_later(keeper, self._start, began_s)

    def _start_later(self, keeper: KeeperHandle, start: Callable[[str], KeeperHandle], began_s: float) -> None:
        if self._loop.time() - began_s >= PROVEN_S:
            self._pauses.pop(keeper.name, None)
        pause_s = self._pauses.get(keeper.name, PAUSE_S_MIN)
        self._pauses[keeper.name] = min(pause_s * 2, PAUSE_S_MAX)
        echo_err(f"its work is lost and starts again where it may; {keeper.name} is started again in {pause_s:g} s")
        self._loop.call_later(pause_s, self._start_again, keeper, start)

    def _start_again(self, ended: KeeperHandle, start: Callable[[str], KeeperHandle]) -> None:
        if not self._is_stopping():
            keeper = start(ended.name)
            self._keepers[self._keepers.index(ended)] = keeper
            self.add(keeper)
