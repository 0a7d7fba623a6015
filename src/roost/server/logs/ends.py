"""What the state says of the end of a log, whose size is part of the state."""

from roost.core.state.state import State
from roost.model.keys import STDERR_SUFFIX
from roost.model.records.instance import Instance
from roost.model.records.transition import InstanceTransition
from roost.model.states import ALLOCATED, LogStream
from roost.server.agents.validation import LOG_NAME
from roost.server.logs.machine import LIVE, LogEnd


def end_of(state: State, name: str) -> LogEnd | None:
    """The end of a log by its name; None: nothing is known of the attempt."""
    found = LOG_NAME.fullmatch(name)
    if found is None:
        return None
    project, workload, serial, index, attempt = found.groups()
    existing = state.workloads.get(f"{project}/{workload}")
    instance = state.instances.get(f"{project}/{workload}.{index}")
    if existing is None or instance is None or existing.serial != int(serial) or int(attempt) > instance.attempt:
        return None
    stream = LogStream.STDERR if name.endswith(STDERR_SUFFIX) else LogStream.STDOUT
    return log_end(instance, int(attempt), stream)


def end_to_seal(state: State, name: str) -> LogEnd | None:
    """The same for the server that has parts of the log; None: its workload is forgotten, and they may go.

    A server without memory does not know all attempts whose logs it is sent: it keeps what comes.
    """
    if not state.revision:
        return LIVE  # no state is loaded yet
    return end_of(state, name) or (LogEnd(True) if state.settings.adopts else None)


def is_forgotten(state: State, prefix: str) -> bool:
    """Whether the logs of a workload (PROJECT/NAME/SERIAL) can go: this state had it, and has removed it.

    Serials rise, and begin with the time when a state was made. Those below belong to another state, and those above
    too, or to a later leader. A server without memory does not know what it had.
    """
    key, _, serial = prefix.rpartition("/")
    if state.settings.adopts or not (serial.isascii() and serial.isdigit()):
        return False
    workload = state.workloads.get(key)
    is_own = state.meta.first_serial <= int(serial) <= state.serial
    return is_own and (workload is None or workload.serial != int(serial))


def log_end(instance: Instance, attempt: int, stream: LogStream = LogStream.STDOUT) -> LogEnd:
    """The end of a log of one of its attempts."""
    if attempt == instance.attempt:
        return LogEnd(instance.state not in ALLOCATED, _size(instance, stream))
    sizes = [_size(line, stream) for line in instance.story if line.attempt == attempt and line.log_size is not None]
    return LogEnd(True, sizes[-1] if sizes else None)


def _size(end: Instance | InstanceTransition, stream: LogStream) -> int | None:
    """None: its node has not reported it. An attempt that was never started has no stderr to report."""
    if stream is LogStream.STDOUT or end.log_size is None:
        return end.log_size
    return end.stderr_size or 0
