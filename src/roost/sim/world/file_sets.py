"""Sets of files in a simulated world: a manifest, a content of its own, and one that other sets have as well."""

from roost.model.records.files import FileSet
from roost.ports.blobs import digest_of

SHARED = 3  # contents that several sets have in common


def set_of(name: str) -> FileSet:
    return FileSet(digest_of(name.encode()), 2, 100)


def parts_of(manifest: str) -> tuple[str, str, str]:
    """The blobs of a set."""
    own, shared = digest_of(f"of {manifest}".encode()), digest_of(f"shared {int(manifest[-4:], 16) % SHARED}".encode())
    return manifest, own, shared
