"""One copy into or out of the work directory of a run that goes on. Blocks; copies.py reports to the server.

The path is followed through links that stay inside. Afterwards names are opened one by one, and no link is followed.
"""

import os
import shutil
import stat
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from roost.agent.files.client import FileClient, TransferRefused
from roost.agent.files.collect import Collect
from roost.agent.files.fetch import Fetch, remove_tree
from roost.agent.files.job import TransferJob
from roost.agent.prepare import RESULT_NAME
from roost.files.below import Below
from roost.files.existing import conflict_free, move_into
from roost.files.inside import resolve
from roost.files.manifest import FileEntry, FolderEntry, Manifest
from roost.files.merge import FOLDER_MODE, InputPart, merge
from roost.files.scan import KINDS
from roost.files.select import WantedFiles, select
from roost.model.errors import Invalid, NotFound, RoostError, TooMuch
from roost.model.protocol import CopyOrder, CopyProblem, CopyReport
from roost.model.records.files import OutputGap, OutputProblem, Outputs

GROWN_MAX = 100  # paths in a report
OWN = 0o700
EVERYTHING = "**"
FILE_PROBLEMS = {
    OutputProblem.MISSING: "was removed while it was read",
    OutputProblem.CHANGED: "changed while it was read, other than by growing",
    OutputProblem.UNREADABLE: "cannot be read by the user of the agent",
}


class Places(NamedTuple):
    work: Path  # the work directory of the run
    staging: Path  # where files are until they are whole; on the same file system


def carry_out(order: CopyOrder, places: Places, job: TransferJob, client: FileClient, fetch: Fetch) -> CopyReport:
    """The outcome, also of what cannot be. Raises TransferStopped."""
    try:
        return _into(order, places, job, fetch) if order.digest else _out_of(order, places, job, client)
    except NotFound as error:
        return _problem(order, CopyProblem.NOT_FOUND, str(error))
    except TooMuch as error:
        return _problem(order, CopyProblem.TOO_LARGE, str(error))
    except RoostError as error:
        return _problem(order, CopyProblem.REFUSED, str(error))
    except TransferRefused as error:
        return _problem(order, CopyProblem.FAILED, str(error))
    except FileNotFoundError:
        return _problem(order, CopyProblem.FAILED, "the run has removed its work directory, or a folder of it")
    except OSError as error:
        return _problem(order, CopyProblem.FAILED, error.strerror or str(error))


def _problem(order: CopyOrder, problem: CopyProblem, message: str) -> CopyReport:
    return CopyReport(order.id, order.token, problem, message)


# into a run


def _into(order: CopyOrder, places: Places, job: TransferJob, fetch: Fetch) -> CopyReport:
    with Below(places.work) as below:
        place = _target(order, below)
        manifest = _placed(fetch.manifest(order.digest), place, order)
        needed = conflict_free(manifest, below.root, force=True)
        remove_tree(places.staging)  # an agent that died meanwhile has left it
        places.staging.parent.mkdir(mode=OWN, parents=True, exist_ok=True)
        try:
            fetch.unpack(places.staging, _writable(needed))
            job.check()
            move_into(places.staging, below.root, needed)
        finally:
            shutil.rmtree(places.staging, ignore_errors=True)
    return CopyReport(order.id, order.token, place=place)


def _target(order: CopyOrder, below: Below) -> str:
    """As `cp` has it: into a folder that is there or that ends with a slash, or else by this name."""
    place = resolve(below, order.path)
    mode = _mode(below, place)
    is_folder = not place or order.path.endswith("/") or (mode is not None and stat.S_ISDIR(mode))
    return f"{place}/{order.name}".strip("/") if is_folder else place


def _placed(found: Manifest, place: str, order: CopyOrder) -> Manifest:
    """A set at its place in the work directory, with the folders that lead there."""
    folder, _, name = place.rpartition("/")
    if order.is_file:
        if not name or len(found.entries) != 1 or not isinstance(found.entries[0], FileEntry):
            raise Invalid(order.path or ".", "one file comes, and needs a name")
        return merge([InputPart(folder, Manifest((replace(found.entries[0], path=name),)))])
    top = [InputPart(folder, Manifest((FolderEntry(name, FOLDER_MODE),)))] if name else []
    return merge([*top, InputPart(place, found)])


def _writable(manifest: Manifest) -> Manifest:
    """Folders in which files can be made and moved; they get their own modes in the end."""
    return Manifest(
        tuple(replace(entry, mode=OWN) if isinstance(entry, FolderEntry) else entry for entry in manifest.entries)
    )


# out of a run


def _out_of(order: CopyOrder, places: Places, job: TransferJob, client: FileClient) -> CopyReport:
    with Below(places.work) as below:
        place = resolve(below, order.path)
        is_file = _is_file(below, place, order.path)
        folder, _, name = place.rpartition("/") if is_file else (place, "", EVERYTHING)
        root = below.folder(folder)
        wanted = [WantedFiles(name, is_literal=is_file)]
        own = frozenset() if is_file or place else frozenset({RESULT_NAME})
        chosen = select(
            root, wanted, without=own, bytes_max=order.bytes_max, is_stopped=lambda: job.is_stopped, is_live=True
        )
        if any(item.problem == OutputProblem.TOO_LARGE for item in chosen.gaps):
            raise TooMuch(f"there are more than the {order.bytes_max:,} bytes that may be copied", path=order.path)
        outputs = Collect(job, client, own).keep(chosen, root, wanted)
    if is_file and outputs.files is None:
        gap = next(iter(outputs.gaps), OutputGap(OutputProblem.MISSING))
        raise Invalid(order.path, FILE_PROBLEMS.get(gap.problem, gap.problem.value))
    gaps = tuple(item for item in outputs.gaps if item.problem != OutputProblem.MISSING)
    found = Outputs(outputs.files, gaps, outputs.more_gaps)
    grown = chosen.grown[:GROWN_MAX]
    return CopyReport(order.id, order.token, outputs=found, is_file=is_file, place=place, grown=grown)


def _is_file(below: Below, place: str, path: str) -> bool:
    """False: a folder. Raises NotFound, and Invalid for anything else."""
    mode = _mode(below, place)
    if mode is None:
        raise NotFound("there is no such file in the work directory", path=path)
    if stat.S_ISDIR(mode):
        return False
    if not stat.S_ISREG(mode):
        raise Invalid(path, f"is {KINDS.get(stat.S_IFMT(mode), 'neither a file nor a folder')}, and cannot be copied")
    if path.endswith("/"):
        raise Invalid(path, "is a file, not a folder")
    return True


def _mode(below: Below, place: str) -> int | None:
    """None: nothing is there."""
    folder, _, name = place.rpartition("/")
    try:
        return os.stat(name or ".", dir_fd=below.folder(folder), follow_symlinks=False).st_mode
    except FileNotFoundError:
        return None
