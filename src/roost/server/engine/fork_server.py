"""The fork server: a small process that forks the processes for work that needs no state, such as reading documents.

It is forked before the state is loaded. A fork of the server itself holds the loop for 5 ms and more, however small the
work is. The fork server ends when the server does.
"""

import gc
import os
import pickle
import resource
import signal
import socket
import warnings
from contextlib import suppress
from typing import Never

from roost.core.state.state import State
from roost.server.engine.questions import (
    ANSWER_S,
    HEAD_BYTES,
    AnswerProcess,
    Batch,
    answer_and_exit,
    fork,
    leave_server_alone,
)
from roost.server.observability import logging

CPU_S_MAX = int(ANSWER_S)  # of one process; a parser in C does not notice the end of its budget

log = logging.logger("questions")


class ForkServer:
    def __init__(self) -> None:
        self._control, control = socket.socketpair()
        self._control.setblocking(False)
        with control, warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # about threads, which the child does not need
            self.pid = os.fork()
            if not self.pid:
                _serve(control.detach())

    def start(self, state: State, questions: Batch) -> AnswerProcess:
        """A process without the state, or a fork of this one if there is no fork server left."""
        job = pickle.dumps(questions)
        answers, theirs = socket.socketpair()
        with theirs:
            try:
                socket.send_fds(self._control, [b"."], [theirs.fileno()])
            except OSError as error:
                answers.close()
                log.warning("the fork server is gone; the server itself forks", error=str(error))
                return fork(state, questions)
        return AnswerProcess(answers, job=len(job).to_bytes(HEAD_BYTES) + job)

    def close(self) -> None:
        self._control.close()
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


def _serve(control: int) -> Never:
    """Fork a process for each socket that comes, one at a time, until the server is gone."""
    with suppress(BaseException):
        gc.freeze()
        leave_server_alone(control)
        with socket.socket(fileno=control) as coming:
            while sockets := socket.recv_fds(coming, 1, 1)[1]:
                pid = os.fork()
                if not pid:
                    _answer(sockets[0])
                os.close(sockets[0])
                os.waitpid(pid, 0)
    os._exit(0)


def _answer(job: int) -> Never:
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S_MAX, CPU_S_MAX))
    questions: Batch = ()
    with open(job, "rb", closefd=False) as reading:
        size = int.from_bytes(reading.read(HEAD_BYTES))
        data = reading.read(size)
    if size and len(data) == size:  # or the server has ended meanwhile
        questions = pickle.loads(data)
    answer_and_exit(State(), questions, job)
