"""Secrets at an agent: handed to the driver once, and in nothing that is kept or passed on."""

import base64
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import msgspec
import pytest

from roost.agent.actor import Actor, Start
from roost.agent.prepare import from_note, prepare
from roost.keeper.run import KeeperRun as KeeperRun
from roost.keeper.run import RunRefused
from roost.model.errors import Invalid
from roost.model.protocol import Run, Welcome
from roost.model.records.node import Facts
from roost.model.records.secret import Handed
from roost.model.spec.document import encode_document, read_document
from roost.wire.codec import pack_agent
from tests.keeper.keeper_harness import KeeperHarness

VALUE = b"planted-\xff-9c1e"
DOCUMENT = {"name": "job", "command": "true", "env": {"PASSWORD": {"secret": "db"}, "MODE": "x"}}


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[KeeperHarness]:
    made = KeeperHarness(tmp_path)
    yield made
    made.close()


def order(handed: Handed | None = None) -> Run:
    return Run(7, "default/job", 0, 1, encode_document(read_document(DOCUMENT)), secrets=handed)


def hidden(text: bytes | str) -> bool:
    raw = text if isinstance(text, bytes) else text.encode()
    return not any(form in raw for form in (VALUE, base64.b64encode(VALUE), VALUE.hex().encode()))


def test_the_process_gets_any_bytes_beside_plain_variables() -> None:
    answer = prepare(order(), "n1", "/a", ["log"], Handed({"db": VALUE}))
    assert answer.env["MODE"] == "x" and "PASSWORD" not in answer.env
    run = KeeperRun("7", msgspec.json.decode(msgspec.json.encode(answer)), "mark", 1)
    assert run.env["PASSWORD"].encode(errors="surrogateescape") == VALUE
    assert run.env["MODE"] == "x" and run.env["ROOST_NODE"] == "n1"


def test_neither_the_note_nor_what_the_keeper_tells_holds_it() -> None:
    answer = prepare(order(), "n1", "/a", ["log"], Handed({"db": VALUE}))
    assert hidden(repr(answer)) and hidden(base64.b64decode(answer.note))
    assert from_note(answer.note) == order()
    run = KeeperRun("7", msgspec.json.decode(msgspec.json.encode(answer)), "mark", 1)
    assert hidden(run.record())
    run.slim()
    assert run.env == {}


def test_the_actor_hands_it_on_once_and_reports_it_once() -> None:
    actor = Actor("n1", "m1", Facts({}))
    run = order(Handed({"db": VALUE}))
    actions = actor.welcomed(Welcome(1, 1, 1_000, 1, (run,)), 5)
    (start,) = [action for action in actions if isinstance(action, Start)]
    assert start.run.secrets is run.secrets
    assert actor.attempts[7].run == order()
    assert hidden(pack_agent(actor.hello(6)).SerializeToString())


def test_a_secret_that_did_not_come_fails_the_start_in_a_message() -> None:
    with pytest.raises(Invalid) as refused:
        prepare(order(), "n1", "/a", ["log"])
    assert str(refused.value) == "secret db cannot be opened: the server has not sent it"
    with pytest.raises(Invalid) as refused:
        prepare(order(), "n1", "/a", ["log"], Handed({}, "secret db cannot be opened: it is gone"))
    assert str(refused.value) == "secret db cannot be opened: it is gone"


def test_the_keepers_words_name_no_value() -> None:
    steps = [{"argv": ["true"]}]
    for given in ("x", {"A": 1}, {"A=B": "eA=="}, {"A": VALUE.hex() + "!"}, {"A": "abc"}):
        with pytest.raises(RunRefused) as refused:
            KeeperRun("7", {"steps": steps, "dir": "/a", "log": "/b", "secrets": given}, "mark", 1)
        assert hidden(str(refused.value)) and "secrets" in str(refused.value)


def test_a_keeper_without_an_agent_still_has_it_for_the_run_behind_it(harness: KeeperHarness) -> None:
    harness.keeper()
    agent = harness.client()
    go_on = harness.work / "go-on"
    hidden_value = {"PASSWORD": base64.b64encode(VALUE).decode()}
    first = harness.order("a", f"while ! test -e {go_on}; do sleep 0.01; done")
    behind = harness.order("b", 'printf %s "$PASSWORD" | sha256sum', 'printf %s "$PASSWORD" | sha256sum')
    agent.send(first, behind | {"after": "a", "secrets": hidden_value})
    agent.next("started", "a")
    agent.socket.close()
    after = harness.client()
    assert {run["id"]: run["state"] for run in after.runs["runs"]} == {"a": "running", "b": "waiting"}
    assert hidden(str(after.runs))
    go_on.touch()
    assert after.ended("b")["code"] == 0
    assert harness.log("b").decode() == f"{sha256(VALUE).hexdigest()}  -\n" * 2
    assert all(hidden(path.read_bytes()) for path in harness.dir.parent.rglob("*") if path.is_file())
