"""Files of a workload as they are stored: sets of files, by the digest of their manifest. Their bytes are blobs.

A set belongs to a project. Its manifest (roost/files/manifest.py) is itself a blob of that project.
"""

from enum import StrEnum

import msgspec

from roost.model.states import Milestone


class FileSet(msgspec.Struct, forbid_unknown_fields=True, frozen=True, array_like=True, gc=False, cache_hash=True):
    """A manifest and what it stands for."""

    digest: str  # sha256: of the manifest
    files: int = 0
    size: int = 0  # bytes of all files together


class Input(msgspec.Struct, forbid_unknown_fields=True, frozen=True, array_like=True, gc=False, cache_hash=True):
    """One input as the core knows it. Exactly one of `files`, `workload` and `url` is there.

    A name (`blob:NAME`) is resolved to its files when the workload is submitted.
    """

    to: str  # a path below the work directory; "" is the directory itself
    files: FileSet | None = None
    workload: str = ""  # PROJECT/NAME, whose outputs it gets; also a dependency of the policy
    path: str = ""  # of those outputs: a pattern; "" is all of them
    url: str = ""
    sha256: str = ""  # of the file at `url`: 64 hexadecimal digits
    optional: bool = False  # a workload that left none of these files is no obstacle


class InputProblem(StrEnum):
    """Why inputs of an attempt are not in its work directory."""

    NOT_FOUND = "not_found"  # the blob store does not have it
    WRONG_BYTES = "wrong_bytes"  # another digest or another size than it is named by
    UNSAFE_PATH = "unsafe_path"  # the set has a path or a link that leads out of the work directory, or is damaged
    SAME_PATH = "same_path"  # a file in one input, and a folder in another
    NO_MATCH = "no_match"  # no file of an input matches its pattern
    TOO_LARGE = "too_large"  # more files or bytes than a work directory may have
    DISK_FULL = "disk_full"  # of the node, or the quota of its user
    DISK_FAILED = "disk_failed"
    URL_FAILED = "url_failed"
    REFUSED = "refused"  # by the server
    TIMED_OUT = "timed_out"
    AGENT_FAILED = "agent_failed"  # a defect: the log of the agent has more
    IMAGE_NOT_FOUND = "image_not_found"  # neither on the node nor in its registry
    IMAGE_NOT_HERE = "image_not_here"  # the node does not have it, and may not fetch it
    WRONG_ARCHITECTURE = "wrong_architecture"  # the image is for other processors
    REGISTRY_DENIED = "registry_denied"
    REGISTRY_UNREACHABLE = "registry_unreachable"
    ENGINE_AWAY = "engine_away"  # the container engine of the node does not answer
    ENGINE_FAILED = "engine_failed"  # it answers, and cannot do it
    IMAGE_GONE = "image_gone"  # of a virtual machine: the node offered it, and no longer has it
    IMAGE_UNUSABLE = "image_unusable"  # of a virtual machine: it is not what a machine can be made of
    NO_QEMU = "no_qemu"  # on the node, no longer


#: Those of the image of a container or a virtual machine.
IMAGE_PROBLEMS = frozenset(
    {
        InputProblem.IMAGE_NOT_FOUND, InputProblem.IMAGE_NOT_HERE, InputProblem.WRONG_ARCHITECTURE,
        InputProblem.REGISTRY_DENIED, InputProblem.REGISTRY_UNREACHABLE, InputProblem.ENGINE_AWAY,
        InputProblem.ENGINE_FAILED, InputProblem.IMAGE_GONE, InputProblem.IMAGE_UNUSABLE, InputProblem.NO_QEMU,
    }
)  # fmt: skip


class InputFailure(msgspec.Struct, forbid_unknown_fields=True, frozen=True, array_like=True, gc=False):
    """Why an attempt never began. `is_final`: another attempt would find the same, also on another node."""

    problem: InputProblem
    path: str = ""  # in the work directory, or the digest of what has no path yet, or the image
    status: int = 0  # of HTTP, where a URL answered
    detail: str = ""  # what the disk, the URL or the server says
    is_final: bool = False


class OutputProblem(StrEnum):
    """Why outputs of an attempt are not there."""

    MISSING = "missing"  # no file matches a pattern
    TOO_LARGE = "too_large"
    TOO_MANY = "too_many"
    NOT_A_FILE = "not_a_file"  # a device, a pipe, a link that leaves the directory
    UNREADABLE = "unreadable"
    CHANGED = "changed"  # while it was read, by a process that outlived its run
    NOT_STORED = "not_stored"  # the blob store did not take it in time
    PROJECT_FULL = "project_full"


class OutputGap(msgspec.Struct, forbid_unknown_fields=True, frozen=True, array_like=True, gc=False):
    """Something that an attempt was to produce, and that is not among its outputs."""

    problem: OutputProblem
    path: str = ""  # the pattern, or the path of a file
    required: bool = False


class Outputs(msgspec.Struct, forbid_unknown_fields=True, frozen=True, array_like=True, gc=False):
    """What an attempt produced. Whole or absent: a set that is named here is in the blob store."""

    files: FileSet | None = None
    gaps: tuple[OutputGap, ...] = ()  # the worst come first
    more_gaps: int = 0  # beside these, for which a report has no room

    @property
    def are_lost(self) -> bool:
        """Whether there was something to keep, and nothing of it was kept."""
        return self.files is None and any(gap.problem != OutputProblem.MISSING for gap in self.gaps)

    @property
    def required_gaps(self) -> tuple[OutputGap, ...]:
        return tuple(gap for gap in self.gaps if gap.required)


class InputFiles(msgspec.Struct, forbid_unknown_fields=True, frozen=True, array_like=True, gc=False):
    """Outputs that a dependent got when it was released. It keeps them: every attempt has the same inputs."""

    workload: str  # PROJECT/NAME, whose outputs these are
    files: FileSet
    index: int | None = None  # of an array: the instance, whose files have a folder of their own


class RunInput(msgspec.Struct, forbid_unknown_fields=True, frozen=True, array_like=True, gc=False):
    """An input as a node gets it: a manifest, or a URL."""

    to: str
    digest: str = ""  # of a manifest
    path: str = ""  # a pattern: only these of its files
    url: str = ""
    sha256: str = ""
    optional: bool = False  # none of its files may match the pattern


def input_folder(item: Input, index: int | None) -> str:
    """Where the outputs of an instance go: those of an array have a folder each."""
    return item.to if index is None else f"{item.to}/{index}".lstrip("/")


def folder_index(item: Input, given: RunInput) -> int | None:
    """The inverse: of which instance of an array these files of a run are; None: they have no folder of their own."""
    folder = given.to.removeprefix(item.to).lstrip("/")
    is_index = bool(item.workload) and folder.isascii() and folder.isdecimal()
    return int(folder) if is_index and input_folder(item, int(folder)) == given.to else None


def covers(item: Input, given: RunInput) -> bool:
    """Whether files of a run are an input of its document."""
    is_there = given.to == item.to or folder_index(item, given) is not None
    return is_there and given.path == item.path and (given.url == item.url if item.url else bool(given.digest))


INPUT_WAITS_FOR = Milestone.SUCCEEDED  # what an input from a workload waits for, unless `after` says another
