"""Which server a request is forwarded to while the lead changes hands."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from roost.model.errors import NoService
from roost.server.cluster import forwarding
from roost.server.cluster.election import ServerIdentity
from roost.server.cluster.forwarding import Forwarder

ME, OLD, NEW = (ServerIdentity(name, name, "", f"{name}:1") for name in ("me", "old", "new"))


class Reached:
    """Peers of which only the new leader can be reached. `after`: what has changed when the old one was tried."""

    def __init__(self, after: Any) -> None:
        self.tried: list[str] = []
        self._after = after

    async def reaches(self, peer: ServerIdentity) -> bool:
        self.tried.append(peer.name)
        self._after()
        return peer is NEW


def forwarder(after: str) -> tuple[Forwarder, Reached]:
    election = SimpleNamespace(leader=OLD)
    engine = SimpleNamespace(ready=False, failed="", leadership=SimpleNamespace(election=election, identity=ME))

    def changed() -> None:
        if after == "another leads":
            election.leader = NEW
        elif after == "this one leads":
            engine.ready = True

    peers = Reached(changed)
    return Forwarder(cast(Any, engine), cast(Any, peers)), peers


async def test_a_request_waits_for_the_next_leader_when_the_old_one_has_gone() -> None:
    made, peers = forwarder("another leads")
    assert await made.leader() is NEW
    assert peers.tried == ["old", "new"]


async def test_a_server_that_takes_over_meanwhile_answers_itself() -> None:
    made, _ = forwarder("this one leads")
    assert await made.leader() is None


async def test_a_leader_that_cannot_be_reached_is_named_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forwarding, "WAIT_S", 0.05)
    made, peers = forwarder("nothing")
    with pytest.raises(NoService, match="the leader at old:1 cannot be reached"):
        await made.leader()
    assert len(peers.tried) > 1
