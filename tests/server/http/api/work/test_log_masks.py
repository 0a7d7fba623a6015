"""Masked logs over the API: values of secrets are shown as ***, whatever the pieces; what is stored is not changed."""

from base64 import b64decode

from roost.model.keys import log_name
from tests.server.http.api.work.test_logs import PATH, running, write
from tests.server.inprocess_server import InprocessServer, events, inprocess_server, over_http

TEXT = b"token=correct-horse; again correct-horse\nend"
SHOWN = b"token=***; again ***\nend"
ENV = {"TOKEN": {"secret": "token"}}


async def set_secret(made: InprocessServer) -> None:
    body = {"value": "correct-horse"}
    answer = await made.client.put("/v1/projects/default/secrets/token", json=body)
    assert answer.status_code < 300, answer.text


async def test_values_are_masked_in_every_view_and_kept_in_the_store() -> None:
    async with inprocess_server() as made, over_http(made) as client:
        await set_secret(made)
        agent, run = await running(made, env=ENV, mask=True)
        for at in range(0, len(TEXT), 7):  # values are split
            write(made, run, TEXT[at : at + 7], at)
        await agent.ends(run, log_size=len(TEXT))
        answer = await made.client.get(PATH)
        assert answer.content == SHOWN and answer.headers["roost-log-next"] == str(len(TEXT))
        shown, offset = b"", 0
        while offset < len(TEXT):
            answer = await made.client.get(PATH, params={"offset": offset, "limit": 5})
            shown, offset = shown + answer.content, int(answer.headers["roost-log-next"])
        assert shown == SHOWN
        lines = (await made.get(f"{PATH}/lines"))["lines"]
        assert b"".join(b64decode(line["data"]) for line in lines) == SHOWN
        assert (await made.get(f"{PATH}/lines", grep="horse"))["lines"] == []
        async with events(client, f"{PATH}/follow") as stream:
            assert b64decode((await stream.next())["data"]) == SHOWN
        log = log_name(run.workload, run.serial, run.index, run.attempt)
        assert await made.logs.read(log, 0, 100) == TEXT


async def test_the_beginning_of_a_value_is_not_shown_while_more_may_come() -> None:
    async with inprocess_server() as made, over_http(made) as client:
        await set_secret(made)
        agent, run = await running(made, env=ENV, mask=True)
        write(made, run, b"it is correct")
        answer = await made.client.get(PATH)
        assert (answer.content, answer.headers["roost-log-size"]) == (b"it is ", "6")
        async with events(client, f"{PATH}/follow") as stream:
            assert b64decode((await stream.next())["data"]) == b"it is "
            write(made, run, b"-horse, correct", 13)
            assert b64decode((await stream.next())["data"]) == b"***, "
            await agent.ends(run, log_size=28)
            assert b64decode((await stream.next())["data"]) == b"correct"
            assert (await stream.next())["event"] == "end"


async def test_without_mask_every_byte_is_shown() -> None:
    async with inprocess_server() as made:
        await set_secret(made)
        _, run = await running(made, env=ENV)
        write(made, run, TEXT)
        assert (await made.client.get(PATH)).content == TEXT
