"""The table of operations: nothing is forgotten, and everything that only the leader answers can be sent to it."""

import inspect
import re
from pathlib import Path

import msgspec
import pytest

import roost.server.controller
import roost.server.operations
from roost.server.cluster.forwarding import codec_of
from roost.server.controller.calls import CALLS
from roost.server.http.api.routes import HANDLERS
from roost.server.operations.context import Call
from roost.server.operations.permit import Scope
from roost.server.operations.table import BY_NAME, OPERATIONS, RULES
from roost.wire import controller_pb2 as pb
from tests.server.api_requests import operations
from tests.server.inprocess_server import inprocess_server

FOLDER = Path(roost.server.operations.__file__).parent
STREAMS = {"Run", "Attach", "Watch"}


def test_every_public_coroutine_of_an_operations_file_has_a_row() -> None:
    found: set[str] = set()
    for operation in RULES:
        module = inspect.getmodule(operation)
        assert module is not None
        for name, value in vars(module).items():
            takes_call = inspect.iscoroutinefunction(value) and "call" in inspect.signature(value).parameters
            if takes_call and value.__module__ == module.__name__ and not name.startswith("_"):
                found.add(name)
    assert found - set(OPERATIONS) == {"change_workload", "require_secrets"}, "these are no operations themselves"
    assert len(OPERATIONS) == len(RULES), "two operations have one name"


async def test_every_route_has_a_row() -> None:
    async with inprocess_server() as made:
        found = operations(made.api.routes)
    assert set(found) - set(BY_NAME) == set()
    assert set(BY_NAME) - set(found) == {"preview_drain"}, "it is a parameter of `drain` in the REST API"
    assert len(HANDLERS) == len(found)


def test_every_call_of_a_controller_performs_an_operation() -> None:
    service = pb.DESCRIPTOR.services_by_name["Controller"]
    assert {method.name for method in service.methods} == set(CALLS) | STREAMS
    folder = Path(roost.server.controller.__file__).parent
    source = "".join(file.read_text() for file in folder.glob("*.py"))
    performed = set(re.findall(r"(?:caller\.perform|performing)\(\s*(?:pb\.\w+, )?(?:\w+\.)(\w+)", source))
    assert performed - set(OPERATIONS) == set() and len(performed) >= len(CALLS)


@pytest.mark.parametrize("operation", RULES, ids=lambda operation: operation.__name__)
def test_the_first_argument_says_the_project(operation: object) -> None:
    names = list(inspect.signature(operation).parameters)  # type: ignore[arg-type]
    assert names[0] == "call" and inspect.signature(operation).parameters["call"].annotation is Call  # type: ignore[arg-type]
    if RULES[operation].scope is Scope.PROJECT:  # type: ignore[index]
        assert names[1] == "project"


@pytest.mark.parametrize("name", sorted(name for name, rule in BY_NAME.items() if rule.leader))
def test_what_only_the_leader_answers_can_be_forwarded(name: str) -> None:
    codec = codec_of(OPERATIONS[name])
    msgspec.msgpack.Decoder(codec.arguments)
    msgspec.msgpack.Decoder(codec.reply)


def test_a_workload_of_any_name_is_answered_where_it_was_asked() -> None:
    assert not BY_NAME["get_workload"].leader and BY_NAME["why"].leader
