"""The labels of an action's job, and the names that are derived from titles.

A title is any line of text. The labels keep it; a job, a run and a variable need a name, which is derived from it.
"""

import re
import unicodedata
from collections.abc import Mapping
from zlib import crc32

from roost.model.spec.names import is_name

PIPELINE, RUN, ACTION, SERVICE = "pipeline", "run", "action", "service"
OWN_LABELS = (PIPELINE, RUN, ACTION)
DERIVED_LENGTH_MAX = 26  # of a name made from a title: PIPELINE-RUN-ACTION has 63 with two of them, and 9 for the run
_OTHER = re.compile("[^A-Za-z0-9]+")


def name_of(title: str) -> str:
    """The title itself if it is a name, else its letters and digits: `Unit tests` is `Unit-tests`.

    A title that is long, or has none of them, gets a checksum: two titles rarely have one name.
    """
    if is_name(title):
        return title
    plain = unicodedata.normalize("NFKD", title).encode("ascii", "ignore").decode()
    name = _OTHER.sub("-", plain).strip("-")
    if name and len(name) <= DERIVED_LENGTH_MAX:
        return name
    suffix = f"{crc32(title.encode(errors='replace')):08x}"
    return f"{name[: DERIVED_LENGTH_MAX - 9].strip('-')}-{suffix}".lstrip("-")


def job_name(pipeline: str, run: str, action: str) -> str:
    """PIPELINE-RUN-ACTION, of titles."""
    return f"{name_of(pipeline)}-{run}-{name_of(action)}"


def action_of(name: str, labels: Mapping[str, str]) -> str:
    """The title of an action by the name and the labels of its job; nothing: these labels mean something else."""
    if not all(label in labels for label in OWN_LABELS):
        return ""
    action = labels[ACTION]
    return action if name == job_name(labels[PIPELINE], labels[RUN], action) else ""


def service_of(name: str, labels: Mapping[str, str]) -> str:
    """The title of a service of an action; nothing: it is none."""
    service = labels.get(SERVICE, "")
    suffix = f"-{name_of(service)}"
    return service if service and name.endswith(suffix) and action_of(name.removesuffix(suffix), labels) else ""
