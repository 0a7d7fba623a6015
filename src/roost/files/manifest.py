"""The manifest of a directory: what is in it, by digest. Nothing in a manifest that is checked leads out of it."""

import re
from collections.abc import Iterator

import msgspec

from roost.model.errors import Invalid, TooMuch
from roost.ports.blobs import BLOB_BYTES_MAX, DIGEST

SMALL_BYTES = 1 << 20  # smaller files travel in packs, larger ones as blobs of their own
ENTRIES_MAX = 100_000  # a manifest of 20 MB; a repository of the size of Linux has 90,000 files
MANIFEST_BYTES_MAX = 64 << 20
PATH_BYTES_MAX = 4_000  # Linux takes 4,096, and the directory has a path of its own
NAME_BYTES_MAX = 255  # as file systems take
DEPTH_MAX = 100  # open folders while a directory is read
LINKS_FOLLOWED_MAX = 40  # as Linux
LINK_STEPS_MAX = 1_000_000  # of all links together: less than a second of work
MODE_MAX = 0o777  # no setuid, setgid or sticky bit travels

# A name with a newline would be two lines wherever it is shown.
CONTROL = re.compile(r"[\x00-\x1f\x7f]")


NO_NAMES = {"", ".", ".."}


class FileEntry(msgspec.Struct, frozen=True, tag="file"):
    """Bytes and permission bits."""

    path: str
    mode: int
    size: int
    digest: str


class LinkEntry(msgspec.Struct, frozen=True, tag="link"):
    """A symbolic link that stays inside the directory."""

    path: str
    target: str


class FolderEntry(msgspec.Struct, frozen=True, tag="folder"):
    """A folder. Every folder has an entry, before those of its content."""

    path: str
    mode: int


Entry = FileEntry | LinkEntry | FolderEntry


class Manifest(msgspec.Struct, frozen=True):
    """Everything below a directory, ordered by path. The same content is the same manifest, to the byte."""

    entries: tuple[Entry, ...] = ()

    def files(self) -> Iterator[FileEntry]:
        return (entry for entry in self.entries if isinstance(entry, FileEntry))

    def bytes_total(self) -> int:
        return sum(file.size for file in self.files())


def encode(manifest: Manifest) -> bytes:
    return msgspec.json.encode(manifest)


def decode(data: bytes, bytes_max: int = BLOB_BYTES_MAX) -> Manifest:
    """Raises Invalid or TooMuch, with the path that is wrong."""
    if len(data) > MANIFEST_BYTES_MAX:
        raise TooMuch(f"the manifest has {len(data)} bytes, at most {MANIFEST_BYTES_MAX}")
    try:
        manifest = msgspec.json.decode(data, type=Manifest)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Invalid("manifest", str(error)) from None
    check(manifest, bytes_max)
    return manifest


def check(manifest: Manifest, bytes_max: int = BLOB_BYTES_MAX) -> None:
    """Raises Invalid or TooMuch, with the path that is wrong. `bytes_max`: of all files together."""
    if len(manifest.entries) > ENTRIES_MAX:
        raise TooMuch(f"{len(manifest.entries)} files and folders, at most {ENTRIES_MAX}")
    folders: set[tuple[str, ...]] = {()}
    sizes: dict[str, int] = {}
    before: tuple[str, ...] = ()
    total = 0
    for entry in manifest.entries:
        names = check_path(entry.path)
        if names <= before:
            raise Invalid(entry.path, "the entries of a manifest are ordered by path, each path once")
        if names[:-1] not in folders:
            raise Invalid(entry.path, "is not in a folder of the manifest")
        before = names
        if isinstance(entry, LinkEntry):
            continue
        if not 0 <= entry.mode <= MODE_MAX:
            raise Invalid(entry.path, f"mode {entry.mode:o}: only permission bits")
        if isinstance(entry, FolderEntry):
            folders.add(names)
            continue
        total += _check_file(entry, sizes)
        if total > bytes_max:
            raise TooMuch(f"the files have more than {bytes_max} bytes", path=entry.path)
    _check_links(manifest)


def check_path(path: str) -> tuple[str, ...]:
    """The names of a relative path that stays below."""
    try:
        size = len(path.encode())
    except UnicodeEncodeError:
        raise Invalid(ascii(path), "the name is not UTF-8") from None
    names = tuple(path.split("/"))
    if CONTROL.search(path):
        raise Invalid(ascii(path), "the name has a control character")
    if not NO_NAMES.isdisjoint(names):
        raise Invalid(path, "is not a relative path inside the directory")
    if size > NAME_BYTES_MAX and (size > PATH_BYTES_MAX or max(len(name.encode()) for name in names) > NAME_BYTES_MAX):
        raise Invalid(path, f"a path has at most {PATH_BYTES_MAX} bytes, a name {NAME_BYTES_MAX}")
    if len(names) > DEPTH_MAX:
        raise Invalid(path, f"is more than {DEPTH_MAX} folders deep")
    return names


def _check_file(entry: FileEntry, sizes: dict[str, int]) -> int:
    if not DIGEST.fullmatch(entry.digest):
        raise Invalid(entry.path, "the digest is not sha256: and 64 hexadecimal digits")
    if not 0 <= entry.size <= BLOB_BYTES_MAX:
        raise Invalid(entry.path, f"a file has between 0 and {BLOB_BYTES_MAX} bytes: {entry.size}")
    if sizes.setdefault(entry.digest, entry.size) != entry.size:
        raise Invalid(entry.path, "another file with this digest has another size")
    return entry.size


def _check_links(manifest: Manifest) -> None:
    """Every link, followed through other links, ends inside the directory; whether something is there or not."""
    links = {tuple(entry.path.split("/")): entry for entry in manifest.entries if isinstance(entry, LinkEntry)}
    steps = 0
    for place, entry in links.items():
        at: list[str] = list(place[:-1])
        rest, followed = _target(entry), 1
        while rest:
            steps += 1
            if steps > LINK_STEPS_MAX:
                raise TooMuch(f"links lead to links in more than {LINK_STEPS_MAX} steps", path=entry.path)
            name = rest.pop()
            if name in ("", "."):
                continue
            if name == "..":
                if not at:
                    raise Invalid(entry.path, f"the link to {entry.target!r} leaves the directory")
                at.pop()
                continue
            at.append(name)
            if (link := links.get(tuple(at))) is not None:
                followed += 1
                if followed > LINKS_FOLLOWED_MAX:
                    raise Invalid(entry.path, f"leads through more than {LINKS_FOLLOWED_MAX} links")
                at.pop()
                rest += _target(link)


def _target(entry: LinkEntry) -> list[str]:
    """The names of the target, the last one first."""
    try:
        size = len(entry.target.encode())
    except UnicodeEncodeError:
        raise Invalid(entry.path, "the target of the link is not UTF-8") from None
    if not 0 < size <= PATH_BYTES_MAX or CONTROL.search(entry.target):
        raise Invalid(
            entry.path, f"the target of a link has between 1 and {PATH_BYTES_MAX} bytes, none of them control"
        )
    if entry.target.startswith("/"):
        raise Invalid(entry.path, f"the link to {entry.target!r} leaves the directory")
    return entry.target.split("/")[::-1]
