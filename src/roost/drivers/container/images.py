"""Images of containers on a node: fetched before a run begins, and known by their digest from then on."""

import base64
import json
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import msgspec

from roost.keeper.containers.engine import EngineAway, EngineClient, EngineRefused
from roost.model.records.files import InputProblem
from roost.model.spec.runs.container import ImageWanted, Pull

INSPECT_S_MAX = 30.0
SILENCE_S_MAX = 120.0  # of a registry during a pull
LINE_BYTES_MAX = 1 << 20
NOT_THERE = 404


#: Engines report what went wrong with a registry as a sentence only. The first that is in it counts.
SIGNS = (
    (InputProblem.WRONG_ARCHITECTURE, ("no matching manifest", "no image found in manifest list for architecture")),
    (InputProblem.DISK_FULL, ("no space left",)),
    (
        InputProblem.REGISTRY_DENIED,
        ("unauthorized", "access denied", "access to the resource is denied", "no basic auth",
         "authentication required", "invalid username/password"),
    ),
    (
        InputProblem.REGISTRY_UNREACHABLE,
        ("connection refused", "no such host", "timeout", "dial tcp", "eof", "tls:", "server misbehaving",
         "network is unreachable", "no route to host", "x509", "response to https client"),
    ),
    (
        InputProblem.IMAGE_NOT_FOUND,
        ("not found", "manifest unknown", "does not exist", "no such image", "name unknown"),
    ),
)  # fmt: skip
#: What another node would find as well.
FINAL = (InputProblem.IMAGE_NOT_FOUND, InputProblem.REGISTRY_DENIED, InputProblem.WRONG_ARCHITECTURE)


class ImageFound(msgspec.Struct, frozen=True):
    id: str  # by which the engine knows it, whatever its tag comes to mean
    digest: str  # by which its registry knows it; of an image that was never in one, its id
    architecture: str = ""
    pulled_ms: int = 0  # for how long it was fetched; 0: it was here


class ImageUnavailable(Exception):
    """`detail`: what the engine says. `is_final`: another node would find the same."""

    def __init__(self, image: str, problem: InputProblem, detail: str, *, is_final: bool | None = None) -> None:
        super().__init__(detail)
        self.image = image
        self.problem = problem
        self.is_final = problem in FINAL if is_final is None else is_final


Progress = Callable[[int], None]  # percent of the bytes of the layers that are known so far


def ensure_image(
    socket: str, wanted: ImageWanted, password: str, architecture: str, progress: Progress, check: Callable[[], None]
) -> ImageFound:
    """Have an image on the node. `check` raises when the run is no longer wanted. Raises ImageUnavailable."""
    client = EngineClient(socket, INSPECT_S_MAX)
    try:
        found = inspect_image(client, wanted.image)
        if wanted.pull == Pull.ALWAYS or (found is None and wanted.pull == Pull.MISSING):
            found = _pulled(client, wanted, password, progress, check)
    except EngineAway as error:
        raise ImageUnavailable(wanted.image, InputProblem.ENGINE_AWAY, str(error)) from None
    except EngineRefused as error:
        raise ImageUnavailable(wanted.image, problem_of(str(error)), str(error)) from None
    if found is None:
        is_never = wanted.pull == Pull.NEVER
        problem = InputProblem.IMAGE_NOT_HERE if is_never else InputProblem.IMAGE_NOT_FOUND
        raise ImageUnavailable(wanted.image, problem, "")
    if found.architecture and architecture and found.architecture != architecture:
        detail = f"{found.architecture}, not {architecture}"
        raise ImageUnavailable(wanted.image, InputProblem.WRONG_ARCHITECTURE, detail)
    return found


def _pulled(
    client: EngineClient, wanted: ImageWanted, password: str, progress: Progress, check: Callable[[], None]
) -> ImageFound | None:
    began = time.monotonic()
    progress(0)
    pull_image(client, wanted, password, progress, check)
    found = inspect_image(client, wanted.image)
    pulled_ms = max(1, int((time.monotonic() - began) * 1_000))
    return msgspec.structs.replace(found, pulled_ms=pulled_ms) if found is not None else None


def inspect_image(client: EngineClient, image: str) -> ImageFound | None:
    try:
        found = client.call("GET", f"/images/{quote(image, safe='/:@')}/json")
    except EngineRefused as error:
        if error.status == NOT_THERE:
            return None
        raise
    if not isinstance(found, dict):
        return None
    id = str(found.get("Id", ""))
    digests = [str(item).rpartition("@")[2] for item in found.get("RepoDigests") or ()]
    return ImageFound(id, digests[0] if digests else id, str(found.get("Architecture", "")))


def pull_image(
    client: EngineClient, wanted: ImageWanted, password: str, progress: Progress, check: Callable[[], None]
) -> None:
    name, tag = split_reference(wanted.image)
    headers = {}
    if wanted.user:
        login = {"username": wanted.user, "password": password, "serveraddress": registry_of(wanted.image)}
        headers["X-Registry-Auth"] = base64.urlsafe_b64encode(json.dumps(login).encode()).decode()
    path = f"/images/create?fromImage={quote(name, safe='')}&tag={quote(tag, safe='')}"
    answer = client.open("POST", path, None, headers, timeout_s=SILENCE_S_MAX)
    layers: dict[str, tuple[int, int]] = {}
    buffer = b""
    try:
        while piece := answer.read():
            check()
            *lines, buffer = (buffer + piece).split(b"\n")
            for line in lines:
                _progressed(line, layers, progress)
            if len(buffer) > LINE_BYTES_MAX:
                raise EngineAway("a line of its progress does not end")
        _progressed(buffer, layers, progress)
    finally:
        answer.close()


def _progressed(line: bytes, layers: dict[str, tuple[int, int]], progress: Progress) -> None:
    try:
        news: dict[str, Any] = json.loads(line) if line.strip() else {}
    except ValueError:
        return
    if news.get("error"):
        raise EngineRefused(0, " ".join(str(news["error"]).split()))
    detail = news.get("progressDetail") or {}
    if news.get("status") == "Downloading" and detail.get("total"):
        layers[str(news.get("id"))] = (int(detail.get("current", 0)), int(detail["total"]))
    elif news.get("status") in ("Download complete", "Pull complete") and str(news.get("id")) in layers:
        total = layers[str(news["id"])][1]
        layers[str(news["id"])] = (total, total)
    else:
        return
    whole = sum(total for _, total in layers.values())
    progress(sum(current for current, _ in layers.values()) * 100 // max(1, whole))


def problem_of(message: str) -> InputProblem:
    lower = message.lower()
    return next(
        (problem for problem, signs in SIGNS if any(sign in lower for sign in signs)), InputProblem.ENGINE_FAILED
    )


def split_reference(image: str) -> tuple[str, str]:
    """The name, and the tag or digest; without either an engine would fetch every tag there is."""
    name, at, digest = image.partition("@")
    head, colon, tag = name.rpartition(":")
    if colon and "/" not in tag:
        return (head, digest if at else tag)
    return (name, digest if at else "latest")


def registry_of(image: str) -> str:
    """The host of a reference; Docker's own registry if it names none."""
    first, slash, _ = image.partition("/")
    return first if slash and ("." in first or ":" in first or first == "localhost") else "docker.io"
