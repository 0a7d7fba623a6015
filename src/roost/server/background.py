"""How the background tasks of a server are logged."""

from roost.server.observability import logging
from roost.supervisor import SupervisedTasks

log = logging.logger("background")


def server_tasks() -> SupervisedTasks:
    return SupervisedTasks("server", _log_restart, _log_error)


def _log_restart(task: str, end: str, pause_s: float) -> None:
    log.error("a background task has ended and is restarted", task=task, end=end, after_s=pause_s)


def _log_error(error: Exception) -> None:
    log.error("a background task failed", exc_info=error)
