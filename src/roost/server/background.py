"""The background tasks of a server. None can end unnoticed: each is restarted and counted, or ends the server.

Restarts are in `roost_task_restarts_total`, in /v1/status and in `roost doctor`. The engine and the listener of the API
end the server: without them it would live and answer nothing.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable

from roost.server.observability import logging

PAUSE_S_MIN, PAUSE_S_MAX = 0.1, 10.0  # before a restart: a task that fails at once must not take the machine
STEADY_S = 60.0  # a task that ran for so long begins with the shortest pause again

Work = Callable[[], Awaitable[object]]

log = logging.logger("background")


class SupervisedTasks:
    def __init__(self) -> None:
        self.restarts: Counter[str] = Counter()  # by task, in the life of this server

    async def keep(self, name: str, work: Work) -> None:
        """Run it until this is cancelled, and again whenever it ends in another way."""
        loop = asyncio.get_running_loop()
        pause_s = PAUSE_S_MIN
        while True:
            began_s = loop.time()
            end = await _end_of(work)
            self.restarts[name] += 1
            pause_s = PAUSE_S_MIN if loop.time() - began_s > STEADY_S else min(pause_s * 2, PAUSE_S_MAX)
            log.error("a background task has ended and is restarted", task=name, end=end, after_s=pause_s)
            await asyncio.sleep(pause_s)

    async def need(self, name: str, work: Work, expected: Callable[[], bool]) -> None:
        """Run it once. Raises RuntimeError when it ends before that is expected: the server ends then."""
        end = await _end_of(work)
        if not expected():
            raise RuntimeError(f"the task {name} has ended ({end}), and there is no server without it")


async def _end_of(work: Work) -> str:
    """Run it, and say how it ended. Raises CancelledError only where the task around it is cancelled."""
    try:
        await work()
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        return "cancelled from inside"  # by a library: gRPC does so when a channel is closed
    except Exception as error:
        log.error("a background task failed", exc_info=error)
        return f"{type(error).__name__}: {error}"
    return "it returned"
