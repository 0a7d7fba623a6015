"""Parameters that many operations share, with their bounds, and pages. The REST API shows them in its description."""

from collections.abc import Iterable
from heapq import nsmallest
from typing import Annotated, Literal

from msgspec import Meta

PAGE_MAX = 1_000  # ten milliseconds of work
DETAILS_MAX = 100  # for items that are large: documents of half a megabyte, services with a hundred addresses
INDEX_MAX = 1 << 31
OFFSET_MAX = 1 << 53  # exact in JSON
SERIAL_MAX = 1 << 62

Limit = Annotated[int, Meta(ge=1, le=PAGE_MAX, description="Maximum number of items.")]
DetailLimit = Annotated[int, Meta(ge=1, le=DETAILS_MAX, description="Maximum number of items.")]
After = Annotated[str, Meta(description="`next` of the previous page.")]
AfterRow = Annotated[str, Meta(max_length=100, description="`next` of the previous page.")]
AfterIndex = Annotated[int, Meta(ge=-1, le=SERIAL_MAX, description="`next` of the previous page.")]
At = Annotated[
    str, Meta(max_length=100, description="Past state: a time (RFC 3339), a duration ago (`2h`) or `@REVISION`.")
]
Since = Annotated[str, Meta(max_length=100, description="From then on: RFC 3339, or a duration ago (`2h`).")]
Until = Annotated[str, Meta(max_length=100, description="Until before then: RFC 3339, or a duration ago.")]
OfInstance = Annotated[int, Meta(ge=0, le=INDEX_MAX, description="Only of this instance.")] | None
Attempt = Annotated[int, Meta(ge=0, le=OFFSET_MAX, description="0: the newest.")]
OneStream = Annotated[
    Literal["stdout", "stderr"],
    Meta(
        description="Which log. Unless its document has `stderr: separate`, a run has no stderr log: stdout has both."
    ),
]
AnyStream = Annotated[
    Literal["stdout", "stderr", "all"], Meta(description="Which log; `all`: both, as they come. See the events.")
]
Ready = Annotated[bool, Meta(description="Only addresses that are ready to be used.")]
SameOk = Annotated[bool, Meta(description="A live workload is no conflict: another document makes a new version.")]
Rerun = Annotated[bool, Meta(description="With same_ok: a job that is finished and unchanged runs again.")]
MustExist = Annotated[
    bool,
    Meta(
        description="Only change live workloads: an unknown or finished name is 404, and nothing is made. "
        "It implies same_ok."
    ),
]
PlanToken = Annotated[str, Meta(description="`token` of a plan: do exactly that, or nothing.")]


def page_of(keys: Iterable[str], limit: int, after: str, prefix: str = "") -> tuple[list[str], str | None]:
    """The keys after one, in order, and `next`. `prefix`: only keys that begin with it; `after` and `next` lack it."""
    found = nsmallest(limit + 1, (key for key in keys if key > prefix + after and key.startswith(prefix)))
    return found[:limit], found[limit - 1].removeprefix(prefix) if len(found) > limit else None
