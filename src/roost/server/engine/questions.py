"""Questions that take long: `why`, plans, drain previews. Answered by a forked process, never by the loop that decides.

A fork is an exact snapshot of the state. It costs the loop 2 ms of CPU, and 4 ms with 100,000 pending jobs (123 MB of
memory). One process at a time answers all questions that have gathered, with a low priority, and ends. It only computes
and writes to its socket: it uses none of the server's threads, connections and locks. If it dies, the question that it
was computing is tried once more.
"""

import asyncio
import gc
import os
import pickle
import resource
import signal
import socket
import traceback
import warnings
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Never, TypeVar

from roost.core.state.state import State
from roost.model.errors import NoService, RoostError, error_of
from roost.model.reasons.reason import Reason, Text
from roost.server.engine.engine import Engine
from roost.server.observability import logging
from roost.server.waiting import Turns

WAITING_MAX = 256  # questions: at some ten milliseconds each the last one is answered within seconds
BATCH_MAX = 32  # answered from one snapshot; the next ones get a newer one
BUDGET_S = 2.0  # of CPU per question: ten times what the longest took with 100,000 instances
ANSWER_S = 30.0  # of time per question, on a machine that has other things to do
NICENESS = 10
HEAD_BYTES = 8
FIRST_FD = 3  # after standard input, output and error

TRIES_MAX = 2  # processes that may die with the same question
STDERR_FD = 2

Answer = TypeVar("Answer")
Compute = Callable[[State], Any]
Batch = Sequence[tuple[Compute, float]]  # what is to be computed, and its CPU seconds

log = logging.logger("questions")


@dataclass(eq=False, slots=True)
class Question:
    compute: Compute
    future: "asyncio.Future[Any]"
    budget_s: float
    deaths: int = 0


class AnswerProcess(NamedTuple):
    answers: socket.socket
    pid: int = 0  # 0: a child of another process
    job: bytes = b""  # sent to it first


Start = Callable[[State, Batch], AnswerProcess]


class Questions:
    def __init__(self, engine: Engine, start: Start | None = None) -> None:
        """`start`: how a process begins that answers questions; by default, as a fork of this one."""
        self._engine = engine
        self._start = start or fork
        self._waiting: deque[Question] = deque()
        self._working: asyncio.Task[None] | None = None
        self._turns = Turns()

    async def ask(self, compute: Callable[[State], Answer], who: str = "", *, budget_s: float = BUDGET_S) -> Answer:
        """Compute something from the current state. It runs in another process: what it changes has no effect.

        `who`: the principal, if only one of its questions is to be computed at a time.
        Raises what it raises; NoService `too_busy` when too many questions are queued or it takes too long, and
        `answer_failed` when the process died twice.
        """
        async with self._turns.of(who):
            return await self._ask(compute, budget_s)

    async def _ask(self, compute: Callable[[State], Answer], budget_s: float) -> Answer:
        if len(self._waiting) >= WAITING_MAX:
            raise NoService(f"{WAITING_MAX} questions are queued already; try again in a moment", code="too_busy")
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.append(Question(compute, future, budget_s))
        if self._working is None or self._working.done():
            self._working = asyncio.ensure_future(self._work())
        answer: Answer = await future
        return answer

    async def _work(self) -> None:
        while self._waiting:
            try:
                state = await self._engine.settled()
            except NoService as error:
                for question in self._waiting:
                    _settle(question.future, error)
                self._waiting.clear()
                return
            batch = [self._waiting.popleft() for _ in range(min(BATCH_MAX, len(self._waiting)))]
            batch = [question for question in batch if not question.future.done()]
            if batch:
                await self._answer_or_fail(state, batch)

    async def _answer_or_fail(self, state: State, batch: list[Question]) -> None:
        """A defect leaves no question without an answer, and ends no other."""
        try:
            await self._answer(state, batch)
        except Exception as error:
            log.error("questions could not be answered", exc_info=error)
            self._engine.tasks.restarts["questions"] += 1
            for question in batch:
                _settle(question.future, RoostError("internal error: the log of the server has it", code="internal"))

    async def _answer(self, state: State, batch: list[Question]) -> None:
        """Fork at once: the state is valid until the next await."""
        try:
            process = self._start(state, [(question.compute, question.budget_s) for question in batch])
        except OSError as error:  # no memory, or too many processes or open files
            self._died(batch, os.strerror(error.errno or 0))
            return
        left = deque(batch)
        died = False
        writer: asyncio.StreamWriter | None = None
        try:
            reader, writer = await asyncio.open_unix_connection(sock=process.answers)
            writer.write(process.job)
            while left:
                async with asyncio.timeout(ANSWER_S):
                    size = int.from_bytes(await reader.readexactly(HEAD_BYTES))
                    answer = pickle.loads(await reader.readexactly(size))
                _settle(left.popleft().future, _refusal(*answer[1:]) if answer[0] else answer[1])
        except TimeoutError:
            log.warning("a question took too long", seconds=ANSWER_S)
            _settle(left.popleft().future, _too_long(ANSWER_S))
        except (asyncio.IncompleteReadError, ConnectionError):
            died = True
        finally:
            if writer is not None:
                writer.close()
            how = _end(process.pid)
        if died:
            self._died(list(left), how)
        else:
            self._waiting.extendleft(reversed(left))

    def _died(self, left: list[Question], how: str) -> None:
        """The first of these questions is tried again once, in a new process; the others as if never tried."""
        first = left[0]
        first.deaths += 1
        log.warning("the process that answers questions died", how=how, tries=first.deaths)
        if first.deaths >= TRIES_MAX:
            message = f"the process that computes this answer died {TRIES_MAX} times ({how}); try again in a moment"
            _settle(first.future, NoService(message, code="answer_failed"))
            left = left[1:]
        self._waiting.extendleft(reversed(left))


def _end(pid: int) -> str:
    """End a process, and tell how it ended. A child of another process ends by itself: it has a limit of CPU time."""
    if not pid:
        return "it ended early"
    os.kill(pid, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return f"exit code {code}" if code >= 0 else f"signal {-code}"


def fork(state: State, questions: Batch) -> AnswerProcess:
    """A process that answers questions, as a fork of this one.

    Its answers come over no pipe: uvloop closes the descriptor of a pipe twice, and the second time it may be that of
    another thread.
    """
    answers, writing = socket.socketpair()
    with writing:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # about threads, which the child does not need
                pid = os.fork()
        except OSError:
            answers.close()
            raise
        if not pid:
            answer_and_exit(state, questions, writing.detach())
    return AnswerProcess(answers, pid)


def answer_and_exit(state: State, questions: Batch, writing: int) -> Never:
    code = 1
    try:
        gc.disable()  # it would touch every page, and the memory would be there twice
        leave_server_alone(writing)
        os.nice(NICENESS)
        with os.fdopen(writing, "wb") as pipe:
            for compute, budget_s in questions:
                data = _computed(state, compute, budget_s)
                pipe.write(len(data).to_bytes(HEAD_BYTES) + data)
                pipe.flush()
        code = 0
    except (BrokenPipeError, ConnectionResetError):
        pass  # the server has ended
    except BaseException:
        os.write(STDERR_FD, traceback.format_exc().encode())
    finally:
        os._exit(code)


def leave_server_alone(writing: int) -> None:
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGPROF, _out_of_budget)
    os.closerange(FIRST_FD, writing)
    os.closerange(writing + 1, resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def _computed(state: State, compute: Compute, budget_s: float) -> bytes:
    """Pickled: whether it is a refusal, and the answer or the parts of the refusal."""
    try:
        signal.setitimer(signal.ITIMER_PROF, budget_s)
        try:
            return pickle.dumps((False, compute(state)))
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
    except RoostError as error:
        refusal = error
    except OutOfBudget:
        refusal = _too_long(budget_s)
    except Exception as error:
        refusal = RoostError(f"{type(error).__name__}: {error}"[:500], code="internal")
    parts = (refusal.status, refusal.code, refusal.message, refusal.path, refusal.params, refusal.reason, refusal.text)
    return pickle.dumps((True, *parts))


class OutOfBudget(BaseException):
    """The time limit of a question; not an Exception, which the computation itself might handle."""


def _out_of_budget(*_: object) -> None:
    raise OutOfBudget


def _too_long(seconds: float) -> NoService:
    return NoService(f"the answer takes more than {seconds:.0f} s to compute; try again in a moment", code="too_busy")


def _refusal(
    status: int, code: str, message: str, path: str, params: dict[str, Any], reason: Reason | None, text: Text
) -> RoostError:
    """A refusal with its data: names of other projects' work are left out where it is rendered."""
    error = error_of(status, code, message, path, params)
    error.reason, error.text = reason, text
    return error


def _settle(future: "asyncio.Future[Any]", answer: Any) -> None:
    if future.done():
        return
    if isinstance(answer, RoostError):
        future.set_exception(answer)
    else:
        future.set_result(answer)
