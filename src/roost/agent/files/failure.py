"""Why inputs did not come, as data: what the fetch raised becomes the failure that is reported."""

import errno
import traceback

from roost.agent.files.client import TransferRefused
from roost.agent.files.fetch import UrlFailed
from roost.agent.log import log
from roost.drivers.container.images import ImageUnavailable
from roost.files.unpack import WRONG_BYTES
from roost.model.errors import Invalid, TooMuch
from roost.model.limits import FILE_PATH_BYTES_MAX, TEXT_LENGTH_MAX
from roost.model.records.files import InputFailure, InputProblem

FULL = (errno.ENOSPC, errno.EDQUOT)
CODES = {
    WRONG_BYTES: InputProblem.WRONG_BYTES, "same_path": InputProblem.SAME_PATH, "no_match": InputProblem.NO_MATCH
}  # fmt: skip


def failure_of(error: Exception) -> InputFailure:
    """The disk and the network of a node may do better another time, or elsewhere; what a set is does not change."""
    match error:
        case UrlFailed():
            found = InputFailure(InputProblem.URL_FAILED, error.path, error.status, str(error), error.is_final)
        case ImageUnavailable():
            found = InputFailure(error.problem, error.image, 0, str(error), error.is_final)
        case TransferRefused() if error.is_missing:
            found = InputFailure(InputProblem.NOT_FOUND, "", 0, str(error), is_final=True)
        case TransferRefused():
            found = InputFailure(InputProblem.REFUSED, "", 0, str(error))
        case TooMuch():
            found = InputFailure(InputProblem.TOO_LARGE, error.path, 0, error.message, is_final=True)
        case Invalid():
            problem = CODES.get(error.code)
            detail = error.message if problem is None else ""
            found = InputFailure(problem or InputProblem.UNSAFE_PATH, error.path, 0, detail, is_final=True)
        case OSError():
            problem = InputProblem.DISK_FULL if error.errno in FULL else InputProblem.DISK_FAILED
            found = InputFailure(problem, "", 0, error.strerror or str(error))
        case _:
            log(f"a transfer of files failed: {''.join(traceback.format_exception(error))}")
            found = InputFailure(InputProblem.AGENT_FAILED, "", 0, f"{type(error).__name__}: {error}")
    return _bounded(found)


def _bounded(failure: InputFailure) -> InputFailure:
    path = failure.path.encode(errors="replace")[:FILE_PATH_BYTES_MAX].decode(errors="ignore")
    detail = " ".join(failure.detail.split())[:TEXT_LENGTH_MAX]
    return InputFailure(failure.problem, path, failure.status, detail, failure.is_final)
