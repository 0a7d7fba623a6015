"""One transfer of files in a thread of its own, which can be stopped from the loop at any time."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from typing import Any, TypeVar

from roost.files.select import TransferStopped

T = TypeVar("T")


class TransferJob:
    """Shared by the loop and the thread. What the thread waits for ends with TransferStopped after `stop`."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._waits_for: Future[Any] | None = None

    @property
    def is_stopped(self) -> bool:
        return self._stopped.is_set()

    def stop(self) -> None:
        with self._lock:
            self._stopped.set()
            if self._waits_for is not None:
                self._waits_for.cancel()

    # for the thread

    def check(self) -> None:
        if self.is_stopped:
            raise TransferStopped

    def pause(self, seconds: float) -> None:
        if self._stopped.wait(seconds):
            raise TransferStopped

    def result_of(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """The result of a coroutine of the loop. Raises TransferStopped, and ConnectionError if it was cancelled."""
        with self._lock:
            self.check()
            self._waits_for = waits_for = asyncio.run_coroutine_threadsafe(work(), self._loop)
        try:
            return waits_for.result()
        except CancelledError:
            self.check()
            raise ConnectionError("the call was cancelled") from None


async def in_thread(name: str, work: Callable[[], T]) -> T:
    """Run in a thread that does not keep the process alive: an agent that ends waits for no transfer."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if done.cancelled():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(result)  # type: ignore[arg-type]  # of a T that may be None

    def run() -> None:
        result, error = None, None
        try:
            result = work()
        except BaseException as raised:  # handed to the loop, whatever it is
            error = raised
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return await done
