"""roost result: real runs write JSON, and it is printed as they wrote it."""

import json
from collections.abc import Iterator
from subprocess import CompletedProcess

import pytest

from tests.cli.serving import Served, up


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with up(tmp_path_factory.mktemp("up")) as served:
        yield served


def run(one: Served, name: str, script: str, **fields: object) -> None:
    with one.client() as client:
        client.workloads.run_to_end({"name": name, "command": script, "retries": 0, **fields}, timeout_s=60)


def text(done: "CompletedProcess[bytes]", code: int = 0) -> str:
    assert done.returncode == code, done.stderr.decode()
    return done.stdout.decode()


def test_the_json_is_printed_as_it_was_written(one: Served) -> None:
    run(one, "exact", """printf '{ "b": 1.50,\\n"a": "\\\\u00e9" }\\n' > "$ROOST_RESULT"; exit 3""")
    assert text(one.roost("result", "exact")) == '{"b":1.50,"a":"\\u00e9"}\n'
    assert text(one.roost("result", "exact.0")) == '{"b":1.50,"a":"\\u00e9"}\n'
    shown = json.loads(text(one.roost("result", "exact", "--json")))
    assert (shown["index"], shown["state"], shown["attempt"]) == (0, "failed", 1)
    assert (shown["size"], shown["data"]) == (23, {"b": 1.5, "a": "é"})
    page = text(one.roost("show", "exact"))
    assert 'Result:     {"b":1.5,"a":"é"}\n' in page and "failed" in page


def test_an_array_is_a_line_for_each_element_with_a_result(one: Served) -> None:
    run(one, "many", '[ $ROOST_INDEX = 1 ] || echo "[$ROOST_INDEX, 1.00]" > "$ROOST_RESULT"', count=3)
    lines = text(one.roost("result", "many")).splitlines()
    assert lines == ['{"index":0,"result":[0,1.00]}', '{"index":2,"result":[2,1.00]}'], "as they were written"
    assert text(one.roost("result", "many.2")) == "[2,1.00]\n"
    assert [item["index"] for item in json.loads(text(one.roost("result", "many", "--json")))] == [0, 2]
    with one.client() as client:
        assert client.instances.result("default", "many", 2) == [2, 1.0]
        assert client.instances.result_json("default", "many", 2) == b"[2,1.00]"


def test_without_a_result_the_exit_code_is_its_own(one: Served) -> None:
    run(one, "none", "true")
    done = one.roost("result", "none")
    assert (text(done, 5), done.stderr.decode()) == ("", "roost: default/none.0 has no result: it wrote none\n")
    assert json.loads(text(one.roost("result", "none", "--json"), 5))["size"] == 0
    run(one, "nones", "true", count=2)
    done = one.roost("result", "nones")
    assert (text(done, 5), done.stderr.decode()) == ("", "roost: no instance of nones has a result\n")
    assert one.roost("result", "nobody").returncode == 1, "there is no such workload"


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ('echo {a:1} > "$ROOST_RESULT"', "it is not JSON"),
        ('head -c 70000 /dev/zero > "$ROOST_RESULT"', "it has 70,000 bytes, and 64KiB are allowed"),
        ('ln -s /etc/hostname "$ROOST_RESULT"', "ROOST_RESULT is a link, a directory or another special file"),
        ('mkfifo "$ROOST_RESULT"', "ROOST_RESULT is a link, a directory or another special file"),
        ('mkdir "$ROOST_RESULT"', "ROOST_RESULT is a link, a directory or another special file"),
    ],
)
def test_show_and_why_say_why_a_result_was_not_kept(one: Served, script: str, message: str) -> None:
    name = "bad-" + script.split()[0]
    run(one, name, script)
    assert f"Result:     not kept: {message}\n" in text(one.roost("show", name))
    assert f"result not kept: {message}" in text(one.roost("why", name)) and "is succeeded" in text(
        one.roost("why", name)
    )
    assert message in one.roost("result", name).stderr.decode()
    assert json.loads(text(one.roost("result", name, "--json"), 5))["reason"]["code"] == "result_not_kept"


def test_a_dependent_finds_the_result_in_its_environment(one: Served) -> None:
    run(one, "first-one", """echo '{"file": "a b.txt"}' > "$ROOST_RESULT" """)
    run(
        one,
        "then",
        'echo "$ROOST_RESULT_FIRST_ONE"; echo "$ROOST_RESULT_FIRST_ONE" > "$ROOST_RESULT"',
        after=["first-one"],
    )
    assert text(one.roost("logs", "then")) == '{"file":"a b.txt"}\n' == text(one.roost("result", "then"))


def test_a_large_result_is_shown_where_it_is_missing(one: Served) -> None:
    run(one, "large", """printf '"%20000s"' x > "$ROOST_RESULT" """)
    run(one, "after-large", 'echo "${ROOST_RESULT_LARGE-unset}"', after=["large"])
    assert text(one.roost("logs", "after-large")) == "unset\n"
    page = text(one.roost("show", "after-large"))
    assert "Not passed: ROOST_RESULT_LARGE (default/large): it has more than 16KiB\n" in page
    assert "Result:     20,002 bytes of JSON; `roost result` prints it\n" in text(one.roost("show", "large"))


def test_a_past_result_is_known(one: Served) -> None:
    run(one, "past", 'echo $ROOST_ATTEMPT > "$ROOST_RESULT"')
    with one.client() as client:
        before = client.workloads.get("default", "past").finished_ms
        client.workloads.retry("default", "past", 0)
        client.workloads.wait([("default", "past")], timeout_s=60)
    assert text(one.roost("result", "past")) == "2\n"
    assert text(one.roost("result", "past", "--at", str(before))) == "1\n"
