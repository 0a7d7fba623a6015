"""Lines of logs over the API: by text, time and from the end."""

from base64 import b64decode

import pytest

from roost.server.logs import hub as log_hub
from tests.server.http.api.work.test_logs import PATH, running, write
from tests.server.inprocess_server import inprocess_server


async def test_lines_are_searched_on_the_server() -> None:
    async with inprocess_server() as made:
        agent, run = await running(made)
        write(made, run, b"one\ntwo \xff\nthree")
        found = await made.get(f"{PATH}/lines", grep="t")
        assert [(line["offset"], b64decode(line["data"])) for line in found["lines"]] == [
            (4, b"two \xff\n"), (10, b"three")
        ]  # fmt: skip
        assert (found["attempt"], found["next"], found["size"], found["finished"]) == (1, 15, 15, False)
        assert all(line["at_ms"] > 1_700_000_000_000 for line in found["lines"])
        (last,) = (await made.get(f"{PATH}/lines", tail=1, grep="o"))["lines"]
        assert b64decode(last["data"]) == b"two \xff\n"
        assert not (await made.get(f"{PATH}/lines", since="2999-01-01T00:00Z"))["lines"]
        assert len((await made.get(f"{PATH}/lines", since="1h"))["lines"]) == 3
        refused = await made.client.get(f"{PATH}/lines", params={"grep": "a\nb"})
        assert (refused.status_code, refused.json()["path"]) == (422, "grep")
        await agent.ends(run, log_size=15)
        assert (await made.get(f"{PATH}/lines"))["finished"]


async def test_lines_that_are_elsewhere_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_hub, "LOOK_S", 0.01)
    async with inprocess_server() as made:
        monkeypatch.setattr(made.logs.machine, "_stall_ms", 50)
        agent, run = await running(made)
        await agent.ends(run, log_size=10)
        refused = await made.client.get(f"{PATH}/lines")
        assert (refused.status_code, refused.json()["code"]) == (503, "log_unavailable")
