"""Why inputs did not come: each error becomes a problem with its path, and says whether another attempt can help."""

import errno

import pytest

from roost.agent.files.client import TransferRefused
from roost.agent.files.failure import failure_of
from roost.agent.files.fetch import UrlFailed
from roost.files.web import WebTrouble
from roost.model.errors import Invalid, TooMuch
from roost.model.limits import FILE_PATH_BYTES_MAX, TEXT_LENGTH_MAX
from roost.model.records.files import InputFailure, InputProblem

NONE = WebTrouble("example.org answers 404 Not Found", is_final=True, status=404)
AWAY = WebTrouble("example.org answers 503", status=503)


@pytest.mark.parametrize(
    ("error", "failure"),
    [
        (UrlFailed("tool", NONE), InputFailure(InputProblem.URL_FAILED, "tool", 404, str(NONE), is_final=True)),
        (UrlFailed("tool", AWAY), InputFailure(InputProblem.URL_FAILED, "tool", 503, str(AWAY))),
        (TransferRefused("gone", is_missing=True), InputFailure(InputProblem.NOT_FOUND, "", 0, "gone", is_final=True)),
        (TransferRefused("not now"), InputFailure(InputProblem.REFUSED, "", 0, "not now")),
        (Invalid("a", "differs", code="wrong_bytes"), InputFailure(InputProblem.WRONG_BYTES, "a", is_final=True)),
        (Invalid("a", "is twice", code="same_path"), InputFailure(InputProblem.SAME_PATH, "a", is_final=True)),
        (Invalid("a", "none", code="no_match"), InputFailure(InputProblem.NO_MATCH, "a", is_final=True)),
        (Invalid("../a", "leaves"), InputFailure(InputProblem.UNSAFE_PATH, "../a", 0, "leaves", is_final=True)),
        (TooMuch("100,001 files"), InputFailure(InputProblem.TOO_LARGE, "", 0, "100,001 files", is_final=True)),
        (OSError(errno.ENOSPC, "No space"), InputFailure(InputProblem.DISK_FULL, "", 0, "No space")),
        (OSError(errno.EDQUOT, "Quota"), InputFailure(InputProblem.DISK_FULL, "", 0, "Quota")),
        (OSError(errno.EIO, "I/O error"), InputFailure(InputProblem.DISK_FAILED, "", 0, "I/O error")),
        (KeyError("x"), InputFailure(InputProblem.AGENT_FAILED, "", 0, "KeyError: 'x'")),
    ],
)
def test_each_error_is_a_problem(error: Exception, failure: InputFailure) -> None:
    assert failure_of(error) == failure


def test_what_is_reported_fits_into_a_report() -> None:
    found = failure_of(Invalid("\N{SNOWMAN}" * 2_000, "two\nlines " + "x" * 1_000))
    assert len(found.path.encode()) <= FILE_PATH_BYTES_MAX and len(found.detail) == TEXT_LENGTH_MAX
    assert found.detail.startswith("two lines x")
