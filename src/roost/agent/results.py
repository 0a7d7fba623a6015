"""Results of runs, read from their work directories once they have ended, by this agent or the one after it."""

import os
import stat

import msgspec

from roost.agent.prepare import result_path
from roost.model.limits import RESULT_BYTES_MAX
from roost.model.records.result import Result, ResultProblem, result_of
from roost.ports.driver import Ended, Event, KnownRuns

UNREPORTED_BYTES_MAX = 8 << 20  # that the server has not got: a hello holds them beside 48 MiB of documents


class ResultFiles:
    """The files of one agent. `forget` when the server has what was reported of a run."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._sizes: dict[str, int] = {}  # of results that were read, by run

    def added(self, event: Event) -> Event:
        """An event of the driver, with the results of the runs that have ended."""
        if isinstance(event, Ended):
            return self._ended(event)
        if isinstance(event, KnownRuns):
            runs = [
                run if run.ended is None else msgspec.structs.replace(run, ended=self._ended(run.ended))
                for run in event.runs
            ]
            return msgspec.structs.replace(event, runs=runs)
        return event

    def forget(self, token: int) -> None:
        self._sizes.pop(str(token), None)

    def _ended(self, event: Ended) -> Ended:
        if not event.id.isdecimal():
            return event  # it is not of this agent
        room = UNREPORTED_BYTES_MAX - sum(self._sizes.values())
        result = read_result(result_path(self._directory, event.id), room)
        if result is None:
            return event
        self._sizes[event.id] = len(result.data)
        return msgspec.structs.replace(event, result=result)


def read_result(path: str, room: int = UNREPORTED_BYTES_MAX) -> Result | None:
    """What a run left there; None: nothing. Only a plain file is opened, and nothing is waited for."""
    try:
        place = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError:
        return Result(problem=ResultProblem.UNREADABLE)
    try:
        found = os.fstat(place)
        if not stat.S_ISREG(found.st_mode):
            return Result(problem=ResultProblem.NOT_A_FILE)
        if found.st_size > RESULT_BYTES_MAX:
            return Result(problem=ResultProblem.TOO_LARGE, size=found.st_size)
        if found.st_size > room:
            return Result(problem=ResultProblem.NODE_FULL, size=found.st_size)
        return result_of(_read(place))
    except OSError:
        return Result(problem=ResultProblem.UNREADABLE)
    finally:
        os.close(place)


def _read(place: int) -> bytes:
    """The file behind a descriptor that only names it. It may have grown since: one byte too many is seen."""
    fd = os.open(f"/proc/self/fd/{place}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(fd, "rb") as file:
        return file.read(RESULT_BYTES_MAX + 1)
