"""Images of containers: what a pull from a real registry brings, and what it says when it cannot."""

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from roost_lab.components.docker import IMAGE
from roost_lab.components.etcd import dies_with_us
from roost_lab.components.ports import free_port

from roost.agent.files.failure import failure_of
from roost.drivers.container.images import ImageUnavailable, ensure_image, problem_of, registry_of, split_reference
from roost.files.select import TransferStopped
from roost.keeper.containers.engine import EngineAway, EngineClient
from roost.model.records.files import InputProblem
from roost.model.spec.runs.container import ImageWanted, Pull
from tests.components.docker import shared_engine

USERS = "user:$2y$05$abcdefghijklmnopqrstuuQDoL5Sa/TtfS/XN4AY/jgq.HBbO1BTu\n"  # whose password is `word`
CONFIG = """version: 0.1
log: {{level: error}}
storage: {{filesystem: {{rootdirectory: {folder}/data}}}}
http: {{addr: "127.0.0.1:{port}"}}
auth: {{htpasswd: {{realm: test, path: {folder}/users}}}}
"""


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a registry that knows one user, and has one image of its own."""
    folder, port = tmp_path_factory.mktemp("registry"), free_port()
    (folder / "users").write_text(USERS)
    (folder / "config.yml").write_text(CONFIG.format(folder=folder, port=port))
    command = [*dies_with_us(), "docker-registry", "serve", str(folder / "config.yml")]
    with (folder / "log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            _push(f"127.0.0.1:{port}", folder / "log")
            yield f"127.0.0.1:{port}"
        finally:
            process.kill()


def _push(address: str, log: Path) -> None:
    engine = shared_engine()
    engine.client.call("POST", f"/images/{IMAGE}/tag?repo={address}/team/bb&tag=1")
    headers = {"X-Registry-Auth": "eyJ1c2VybmFtZSI6InVzZXIiLCJwYXNzd29yZCI6IndvcmQifQ=="}
    ends = time.monotonic() + 60
    while True:
        answer = engine.client.open("POST", f"/images/{address}/team/bb/push?tag=1", None, headers)
        text = answer.whole()
        answer.close()
        if b'"error"' not in text:
            break
        assert time.monotonic() < ends, (text, log.read_text())
        time.sleep(0.1)
    _forget(address)


def _forget(address: str) -> None:
    shared_engine().client.call("DELETE", f"/images/{address}/team/bb:1?force=true")


def ensured(image: str, password: str = "", pull: Pull = Pull.MISSING, user: str = "user") -> tuple[str, list[int]]:
    """The digest of an image, and the progress on the way."""
    steps: list[int] = []
    wanted = ImageWanted(image, pull, user if password else "")
    found = ensure_image(shared_engine().socket, wanted, password, "amd64", steps.append, lambda: None)
    return found.digest, steps


def failure(image: str, password: str = "", pull: Pull = Pull.MISSING) -> tuple[InputProblem, bool, str]:
    with pytest.raises(ImageUnavailable) as caught:
        ensured(image, password, pull)
    found = failure_of(caught.value)
    return found.problem, found.is_final, found.path


def test_an_image_comes_with_its_digest_and_is_not_fetched_again(registry: str) -> None:
    image = f"{registry}/team/bb:1"
    digest, steps = ensured(image, "word")
    assert digest.startswith("sha256:") and len(digest) == 71
    assert steps == sorted(steps) and all(0 <= step <= 100 for step in steps)
    assert ensured(image) == (digest, []), "it is here: neither fetched nor asked for with credentials"
    assert ensured(image, "word", Pull.ALWAYS)[0] == digest
    assert ensured(f"{registry}/team/bb@{digest}", "word")[0] == digest
    _forget(registry)


def test_wrong_credentials_and_none_are_refused_for_good(registry: str) -> None:
    image = f"{registry}/team/bb:1"
    assert failure(image, "wrong") == (InputProblem.REGISTRY_DENIED, True, image)
    assert failure(image) == (InputProblem.REGISTRY_DENIED, True, image)


def test_an_image_that_no_registry_has_is_not_found_for_good(registry: str) -> None:
    image = f"{registry}/team/bb:2"
    assert failure(image, "word") == (InputProblem.IMAGE_NOT_FOUND, True, image)


def test_a_registry_that_is_away_may_be_back() -> None:
    image = f"127.0.0.1:{free_port()}/team/bb:1"
    assert failure(image) == (InputProblem.REGISTRY_UNREACHABLE, False, image)


def test_an_image_that_may_not_be_fetched_may_be_elsewhere() -> None:
    assert failure("absent:1", pull=Pull.NEVER) == (InputProblem.IMAGE_NOT_HERE, False, "absent:1")


def test_an_image_for_other_processors_is_wrong_everywhere_alike() -> None:
    with pytest.raises(ImageUnavailable) as caught:
        ensure_image(shared_engine().socket, ImageWanted(IMAGE), "", "arm64", lambda percent: None, lambda: None)
    assert (caught.value.problem, str(caught.value)) == (InputProblem.WRONG_ARCHITECTURE, "amd64, not arm64")


def test_an_engine_that_is_away(tmp_path: Path) -> None:
    with pytest.raises(ImageUnavailable) as caught:
        ensure_image(str(tmp_path / "none"), ImageWanted("x"), "", "", lambda percent: None, lambda: None)
    assert failure_of(caught.value).problem == InputProblem.ENGINE_AWAY


def test_a_pull_ends_with_its_run(registry: str) -> None:
    def stopped() -> None:
        raise TransferStopped

    with pytest.raises(TransferStopped):
        wanted = ImageWanted(f"{registry}/team/bb:1", user="user")
        ensure_image(shared_engine().socket, wanted, "word", "", lambda percent: None, stopped)


@pytest.mark.parametrize(
    "image, parts, registry",
    [
        ("a", ("a", "latest"), "docker.io"),
        ("a:1", ("a", "1"), "docker.io"),
        ("r.example:5000/a", ("r.example:5000/a", "latest"), "r.example:5000"),
        ("localhost/a:1", ("localhost/a", "1"), "localhost"),
        ("team/a:1@sha256:ff", ("team/a", "sha256:ff"), "docker.io"),
    ],
)
def test_a_pull_names_one_image(image: str, parts: tuple[str, str], registry: str) -> None:
    assert (split_reference(image), registry_of(image)) == (parts, registry)


def test_what_no_sign_explains_is_the_engine() -> None:
    assert problem_of("something new") == InputProblem.ENGINE_FAILED


def test_answers_that_are_no_http(tmp_path: Path) -> None:
    import socket
    import threading

    for answer in (b"", b"hello\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort", b"x" * 100_000):
        with socket.socket(socket.AF_UNIX) as listener:
            path = tmp_path / "engine"
            path.unlink(missing_ok=True)
            listener.bind(str(path))
            listener.listen()

            def serve(answer: bytes = answer, listener: socket.socket = listener) -> None:
                with listener.accept()[0] as sock:
                    sock.recv(4096)
                    sock.sendall(answer)

            thread = threading.Thread(target=serve)
            thread.start()
            with pytest.raises(EngineAway):
                EngineClient(str(path), 10.0).call("GET", "/version")
            thread.join()
