"""Which user a run gets, and that no two projects ever have the same one."""

import os
import pwd
from pathlib import Path
from typing import Any

import pytest

from roost.agent.health.probe import ProbeTarget, inside
from roost.agent.isolation import RunIsolation, chosen_level
from roost.model.errors import Invalid
from roost.model.spec.document import Document
from roost.model.spec.service import Check
from roost.model.states import IsolationLevel
from roost.ports.driver import Isolation

USERS = range(700_000, 700_002)


@pytest.fixture
def as_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)


def document(project: str, **fields: Any) -> Document:
    return Document("x", project=project, command="true", **fields)


@pytest.mark.usefixtures("as_root")
def test_a_project_keeps_its_user_over_restarts(tmp_path: Path) -> None:
    before = RunIsolation(str(tmp_path), IsolationLevel.SANDBOX, USERS)
    assert before.of(document("web")) == Isolation("sandbox", "web", 700_000, 700_000)
    assert before.of(document("ml")) == Isolation("sandbox", "ml", 700_001, 700_001)
    after = RunIsolation(str(tmp_path), IsolationLevel.USER, USERS)
    assert after.of(document("ml")) == Isolation("user", "ml", 700_001, 700_001)


@pytest.mark.usefixtures("as_root")
def test_no_user_is_given_twice(tmp_path: Path) -> None:
    isolation = RunIsolation(str(tmp_path), IsolationLevel.SANDBOX, USERS)
    isolation.of(document("web")), isolation.of(document("ml"))
    with pytest.raises(Invalid, match="no user id left for another project"):
        isolation.of(document("third"))
    assert isolation.of(document("web")) is not None


def test_without_root_runs_have_our_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1_234)
    found = RunIsolation(str(tmp_path), IsolationLevel.SANDBOX, USERS).of(document("web"))
    assert found == Isolation("sandbox", "web", 1_234, os.getegid())
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_isolated_where_that_was_chosen(tmp_path: Path) -> None:
    assert chosen_level("none") == ("none", "--isolation none")
    assert RunIsolation(str(tmp_path), IsolationLevel.NONE, USERS).of(document("web")) is None


def test_more_than_the_machine_offers_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("roost.agent.isolation.offered", lambda user: ("user", "unshare: refused"))
    assert chosen_level("") == ("user", "unshare: refused")
    with pytest.raises(Invalid, match="this machine offers user: unshare: refused"):
        chosen_level("sandbox")


@pytest.mark.usefixtures("as_root")
def test_a_check_has_the_user_of_its_run_and_no_privileges() -> None:
    check = Check(argv=("curl", "x"))
    argv = inside(ProbeTarget(check, directory="/work/1", isolation=Isolation("user", "web", 7, 8)))
    assert argv[:5] == ["setpriv", "--reuid", "7", "--regid", "8"] and "--no-new-privs" in argv
    assert argv[-2:] == ["curl", "x"]
    with pytest.raises(ProcessLookupError):  # a run that has not begun has no namespaces
        inside(ProbeTarget(check, directory="/work/1", isolation=Isolation("sandbox", "web", 7, 8)))


@pytest.mark.usefixtures("as_root")
def test_a_run_has_the_user_that_its_document_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    users = {"root": (0, 0), "builder": (801, 802), "toor": (0, 0)}

    def found(name: str) -> Any:
        return pwd.struct_passwd((name, "x", *users[name], "", "/", "/bin/sh"))

    monkeypatch.setattr(pwd, "getpwnam", found)
    isolation = RunIsolation(str(tmp_path), IsolationLevel.SANDBOX, USERS)
    assert isolation.of(document("web", run_as="builder")) == Isolation("sandbox", "web", 801, 802)
    assert isolation.of(document("web", run_as="root")) == Isolation("sandbox", "web", 0, 0)
    with pytest.raises(Invalid, match="this node has no user stranger"):
        isolation.of(document("web", run_as="stranger"))
    with pytest.raises(Invalid, match="user toor of this node is root"):
        isolation.of(document("web", run_as="toor"))


def test_what_a_node_does_not_offer_is_refused_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server places nothing there; its agent may have been started again since."""
    monkeypatch.setattr(os, "geteuid", lambda: 1_234)
    with pytest.raises(Invalid, match="this node offers user"):
        RunIsolation(str(tmp_path), IsolationLevel.USER, USERS).of(document("web", isolation=IsolationLevel.SANDBOX))
    with pytest.raises(Invalid, match="cannot give runs a user"):
        RunIsolation(str(tmp_path), IsolationLevel.SANDBOX, USERS).of(document("web", run_as="builder"))
