"""Questions: answered from a snapshot by another process, bounded in number and in time."""

import asyncio
import contextlib
import errno
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from roost.core.state.state import State
from roost.model.errors import Invalid, NoService, NotFound, RoostError
from roost.server.engine import questions
from roost.server.engine.questions import Questions
from tests.server.inprocess_server import InprocessServer, inprocess_server


@pytest.fixture
async def made() -> AsyncIterator[InprocessServer]:
    async with inprocess_server() as standing:
        yield standing


async def test_the_answer_is_about_the_present_state(made: InprocessServer) -> None:
    asked = Questions(made.engine)
    await made.submit("job")
    assert await asked.ask(lambda state: list(state.workloads)) == ["default/job"]
    await made.submit("other")
    assert await asked.ask(lambda state: sorted(state.workloads)) == ["default/job", "default/other"]


async def test_another_process_answers_and_cannot_change_the_state(made: InprocessServer) -> None:
    await made.submit("job")

    def spoil(state: State) -> int:
        state.workloads.clear()
        return os.getpid()

    assert await Questions(made.engine).ask(spoil) != os.getpid()
    assert list(made.engine.state.workloads) == ["default/job"]


@pytest.mark.parametrize("error", [NotFound("not here", path="x"), Invalid("a.b", "wrong", code="odd")])
async def test_a_refusal_is_the_same_refusal(made: InprocessServer, error: RoostError) -> None:
    def refuse(state: State) -> None:
        raise error

    with pytest.raises(type(error)) as refused:
        await Questions(made.engine).ask(refuse)
    assert (refused.value.code, str(refused.value)) == (error.code, str(error))


async def test_questions_that_gather_are_all_answered_in_order(made: InprocessServer) -> None:
    asked = Questions(made.engine)
    found = await asyncio.gather(*(asked.ask(lambda state, number=number: number) for number in range(100)))
    assert found == list(range(100))


async def test_one_that_takes_too_long_is_given_up_and_the_others_are_answered(
    made: InprocessServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(questions, "BUDGET_S", 0.05)

    def endless(state: State) -> None:
        while True:
            pass

    asked = Questions(made.engine)
    first, second = await asyncio.gather(asked.ask(endless), asked.ask(lambda state: 2), return_exceptions=True)
    assert isinstance(first, NoService) and first.code == "too_busy" and second == 2


async def test_a_process_that_dies_twice_takes_only_its_question_with_it(made: InprocessServer) -> None:
    asked = Questions(made.engine)
    first, second = await asyncio.gather(
        asked.ask(lambda state: os.abort()), asked.ask(lambda state: 2), return_exceptions=True
    )
    assert isinstance(first, NoService) and first.code == "answer_failed" and second == 2
    assert "signal 6" in str(first)


async def test_a_question_whose_process_died_is_answered_by_another_one(made: InprocessServer, tmp_path: Path) -> None:
    def die_once(state: State) -> str:
        if not (tmp_path / "died").exists():
            (tmp_path / "died").touch()
            os.abort()
        return "answered"

    asked = Questions(made.engine)
    assert await asyncio.gather(asked.ask(die_once), asked.ask(lambda state: 2)) == ["answered", 2]


async def test_a_fork_that_fails_twice_is_no_service(made: InprocessServer, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_memory() -> int:
        raise OSError(errno.ENOMEM, "no memory")

    open_before = len(os.listdir("/proc/self/fd"))
    with monkeypatch.context() as patched:
        patched.setattr(os, "fork", no_memory)
        with pytest.raises(NoService) as refused:
            await Questions(made.engine).ask(lambda state: 1)
    assert refused.value.code == "answer_failed"
    assert len(os.listdir("/proc/self/fd")) == open_before


async def test_an_answer_that_cannot_be_sent_is_an_internal_error(made: InprocessServer) -> None:
    with pytest.raises(RoostError) as refused:
        await Questions(made.engine).ask(lambda state: lambda: 1)
    assert (refused.value.status, refused.value.code) == (500, "internal")


async def test_a_computation_cannot_handle_the_end_of_its_budget(
    made: InprocessServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(questions, "BUDGET_S", 0.05)

    def stubborn(state: State) -> None:
        while True:
            with contextlib.suppress(Exception):
                while True:
                    pass

    with pytest.raises(NoService) as refused:
        await Questions(made.engine).ask(stubborn)
    assert refused.value.code == "too_busy"


def test_fork_handlers_of_grpc_are_off_whatever_the_environment_says() -> None:
    shown = subprocess.run(
        [sys.executable, "-c", "import os, roost.server; print(os.environ['GRPC_ENABLE_FORK_SUPPORT'])"],
        env=os.environ | {"GRPC_ENABLE_FORK_SUPPORT": "1"}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert shown.stdout == "0\n"


async def test_more_than_may_wait_are_refused(made: InprocessServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(questions, "WAITING_MAX", 3)
    asked = Questions(made.engine)
    found = await asyncio.gather(*(asked.ask(lambda state: 1) for _ in range(5)), return_exceptions=True)
    assert [1 if item == 1 else item.code for item in found] == [1, 1, 1, "too_busy", "too_busy"]


async def test_no_process_is_left_behind(made: InprocessServer) -> None:
    before = children()
    await Questions(made.engine).ask(lambda state: 1)
    assert children() <= before


def children() -> set[str]:
    """The processes that this one has started, those included that other tests still use."""
    return {pid for file in Path("/proc/self/task").glob("*/children") for pid in file.read_text().split()}


async def test_a_defect_is_the_answer_to_the_questions_that_it_meets_and_to_no_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with inprocess_server() as made:
        asked = Questions(made.engine)
        answer = asked._answer

        async def fails(*_: object) -> None:
            raise ValueError("a defect")

        monkeypatch.setattr(asked, "_answer", fails)
        with pytest.raises(RoostError, match="internal error"):
            await asked.ask(lambda state: 1)
        assert made.engine.tasks.restarts == {"questions": 1}
        monkeypatch.setattr(asked, "_answer", answer)
        assert await asked.ask(lambda state: state.revision >= 0)


def test_a_process_whose_server_has_ended_leaves_without_a_trace(capfd: pytest.CaptureFixture[str]) -> None:
    answers, pid, _ = questions.fork(State(), [(lambda _: os.kill(os.getpid(), signal.SIGSTOP), 60.0)])
    assert os.WIFSTOPPED(os.waitpid(pid, os.WUNTRACED)[1])
    answers.close()
    os.kill(pid, signal.SIGCONT)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1
    assert capfd.readouterr().err == ""
