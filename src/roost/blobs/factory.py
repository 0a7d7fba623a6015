"""Opening the blobs of a server by its setting: the one place that knows the forms.

    DIRECTORY                                         a folder for each project
    s3://BUCKET/PREFIX?endpoint=URL&region=REGION     a prefix for each project

With S3, clients and nodes send and read large contents there themselves. `links=no`: they cannot reach it.
`keys=FILE`: where its keys are, if they are not in the environment.

Projects share no blobs: no member of one can see, or find out by guessing, what another project has.
"""

from collections import OrderedDict
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit
from weakref import WeakValueDictionary

from roost.blobs.files import FileBlobs
from roost.blobs.keys import read_keys
from roost.blobs.memory import MemoryBlobs
from roost.blobs.object_files import FileObjects
from roost.model.errors import Invalid
from roost.model.spec.names import check_name, is_name
from roost.ports.blobs import BlobStore, BlobsUnavailable, Links
from roost.ports.objects import Objects

if TYPE_CHECKING:  # S3 is loaded where it is used
    from roost.blobs.bucket import Bucket, S3Config

S3 = "s3://"
FORMS = "a directory, or s3://BUCKET/PREFIX?endpoint=URL&region=REGION"
OPTIONS = ("endpoint", "region", "links", "keys")
REGION = "us-east-1"
Folders = Callable[[], Awaitable[list[str] | BlobsUnavailable]]
PROJECTS_MAX = 100  # with a store in memory that are not in use; another one is opened in microseconds


class FilesPlace(NamedTuple):
    directory: Path

    def __str__(self) -> str:
        return str(self.directory)


class S3Place(NamedTuple):
    bucket: str
    prefix: str = ""
    endpoint: str = ""  # "": Amazon's, in the region
    region: str = REGION
    links: bool = True  # clients and nodes reach it themselves
    keys: str = ""  # a file with them

    def __str__(self) -> str:
        return f"{S3}{self.bucket}/{self.prefix}" + (f" at {self.endpoint}" if self.endpoint else "")


class BlobRoot:
    """The blobs of all projects. `is_shared`: every server that can lead reads the same ones."""

    def __init__(
        self, open_project: Callable[[str], BlobStore], name: str, folders: Folders, *, is_shared: bool,
        gives_links: bool = False,
    ) -> None:  # fmt: skip
        self._open = open_project
        self._folders = folders
        self._name = name
        self.is_shared = is_shared
        self._gives_links = gives_links
        # One store for a project as long as it is in use: it knows the uploads in progress.
        self._used: WeakValueDictionary[str, BlobStore] = WeakValueDictionary()
        self._recent: OrderedDict[str, BlobStore] = OrderedDict()

    def project(self, name: str) -> BlobStore:
        """The blobs of a project. Raises Invalid for a text that is no name of one."""
        store = self._used.get(name)
        if store is None:
            check_name(name, "project")
            store = self._used[name] = self._open(name)
        self._recent[name] = store
        self._recent.move_to_end(name)
        if len(self._recent) > PROJECTS_MAX:
            self._recent.popitem(last=False)
        return store

    async def projects(self) -> list[str] | BlobsUnavailable:
        """The projects that have blobs, also those that are deleted by now."""
        found = await self._folders()
        return found if isinstance(found, BlobsUnavailable) else [name for name in found if is_name(name)]

    def links(self, name: str) -> Links | None:
        """Links to the blobs of a project, where clients and nodes can use some."""
        store = self.project(name)
        return store if self._gives_links and isinstance(store, Links) else None

    def describe(self) -> str:
        """Where they are, for an operator."""
        return self._name


class Opened(NamedTuple):
    """What a server keeps in one place. `objects`: such as segments of logs. `bucket`: None for a directory."""

    blobs: BlobRoot
    objects: Objects
    bucket: "Bucket | None"


def open_place(setting: str, data: Path) -> Opened:
    """The blobs and objects of a server; nothing is connected or touched before the first call. Raises Invalid.

    `data`: the server's own directory, where they are without a setting, and where uploads to S3 are collected.
    """
    place = read_place(setting) if setting else FilesPlace(data / "blobs")
    if isinstance(place, FilesPlace):
        files = FileBlobs(place.directory)
        root = BlobRoot(files.below, str(place), files.folders, is_shared=bool(setting))
        return Opened(root, FileObjects(place.directory), None)
    from roost.blobs.bucket import Bucket
    from roost.blobs.object_s3 import S3Objects
    from roost.blobs.s3 import S3Blobs

    bucket = Bucket(_config(place))
    s3 = S3Blobs(bucket, data / "uploads")
    root = BlobRoot(s3.below, str(place), s3.folders, is_shared=True, gives_links=place.links)
    return Opened(root, S3Objects(bucket), bucket)


def _config(place: S3Place) -> "S3Config":
    from roost.blobs.bucket import S3Config

    return S3Config(place.bucket, place.prefix, place.endpoint, place.region, *read_keys(place.keys))


def memory_blobs() -> BlobRoot:
    """In memory, for tests: each project's as long as the root lives."""
    stores: dict[str, BlobStore] = {}

    async def folders() -> list[str]:
        return sorted(stores)

    return BlobRoot(lambda name: stores.setdefault(name, MemoryBlobs()), "memory", folders, is_shared=False)


def check_blobs(setting: str) -> None:
    """Refuse a setting that cannot work, and a file with keys that cannot be used. Raises Invalid."""
    place = read_place(setting)
    if isinstance(place, S3Place):
        read_keys(place.keys)


def read_place(setting: str) -> FilesPlace | S3Place:
    """The place that a setting names. Raises Invalid."""
    if not setting or "\0" in setting:
        raise Invalid("blobs", f"this is {FORMS}")
    if not setting.startswith(S3):
        if "://" in setting:
            raise Invalid("blobs", f"what is before :// is unknown here; this is {FORMS}")
        return FilesPlace(Path(setting).expanduser().absolute())
    try:
        url = urlsplit(setting)
    except ValueError as error:
        raise Invalid("blobs", f"{error}; this is {FORMS}") from None
    if not url.netloc or "@" in url.netloc or url.fragment:
        raise Invalid("blobs", f"this is {FORMS}, without keys: they come from the environment or a file")
    options = _options(url.query)
    links = options.pop("links", "yes") == "yes"
    return S3Place(url.netloc, unquote(url.path).strip("/"), **options, links=links)


def _options(query: str) -> dict[str, str]:
    options: dict[str, str] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name not in OPTIONS or name in options:
            raise Invalid("blobs", f"{', '.join(OPTIONS)} can be given, each once; not {name[:40]!r}")
        options[name] = value
    endpoint = options.get("endpoint", "")
    if endpoint and not endpoint.startswith(("http://", "https://")):
        raise Invalid("blobs", "the endpoint is a URL: https://HOST:PORT")
    if options.get("links", "yes") not in ("yes", "no"):
        raise Invalid("blobs", "links is yes, or no: then all bytes go through the servers")
    return options
