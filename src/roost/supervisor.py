"""The background tasks of a server or an agent. None can end unnoticed: it is restarted and counted, or ends its owner.

Restarts of a server are in `roost_task_restarts_total`, in /v1/status and in `roost doctor`. Its engine and the
listener of its API end it: without them it would live and answer nothing.

An agent that ends is started again by its keeper, and takes over the runs. That is for the connection to the server,
whose state is not worth saving. Other tasks are restarted in place: a defect in one of them costs no session.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable

PAUSE_S_MIN, PAUSE_S_MAX = 0.1, 10.0  # before a restart: a task that fails at once must not take the machine
STEADY_S = 60.0  # a task that ran for so long begins with the shortest pause again

Work = Callable[[], Awaitable[object]]
LogRestart = Callable[[str, str, float], None]  # the task, how it ended, and the pause in seconds before its restart
LogError = Callable[[Exception], None]


class SupervisedTasks:
    def __init__(self, owner: str, log_restart: LogRestart, log_error: LogError = lambda error: None) -> None:
        self.restarts: Counter[str] = Counter()  # by task, in the life of this owner
        self._owner = owner
        self._log_restart = log_restart
        self._log_error = log_error

    async def keep(self, name: str, work: Work) -> None:
        """Run it until this is cancelled, and again whenever it ends in another way."""
        loop = asyncio.get_running_loop()
        pause_s = PAUSE_S_MIN
        while True:
            began_s = loop.time()
            end = await self._end_of(work)
            self.restarts[name] += 1
            pause_s = PAUSE_S_MIN if loop.time() - began_s > STEADY_S else min(pause_s * 2, PAUSE_S_MAX)
            self._log_restart(name, end, pause_s)
            await asyncio.sleep(pause_s)

    async def need(self, name: str, work: Work, expected: Callable[[], bool]) -> None:
        """Run it once. Raises RuntimeError when it ends before that is expected: the owner ends then."""
        end = await self._end_of(work)
        if not expected():
            raise RuntimeError(f"the task {name} has ended ({end}), and there is no {self._owner} without it")

    async def _end_of(self, work: Work) -> str:
        """Run it, and say how it ended. Raises CancelledError only where the task around it is cancelled."""
        try:
            await work()
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            return "cancelled from inside"  # by a library: gRPC does so when a channel is closed
        except Exception as error:
            self._log_error(error)
            return f"{type(error).__name__}: {error}"
        return "it returned"
