"""Results of real processes, while agents, servers and machines die."""

from pathlib import Path
from typing import Any

from roost_lab.bench.product import Product

from tests.e2e.test_agents import instance, is_state, kill_agent

GATED = "while [ ! -e {0}/go ]; do sleep 0.01; done; echo $ROOST_ATTEMPT > $ROOST_RESULT; {1}"


def result(product: Product, name: str) -> Any:
    return product.client.instances.result("default", name)


def test_a_result_that_was_written_while_the_agent_was_dead_is_not_lost(tmp_path: Path) -> None:
    with Product(agents=1) as product:
        product.client.workloads.submit({"name": "quick", "command": GATED.format(tmp_path, "exit 3"), "retries": 0})
        product.wait_until(is_state(product, "quick", "running"))
        kill_agent(product)
        (tmp_path / "go").touch()
        product.wait_until(is_state(product, "quick", "failed"))
        assert (instance(product, "quick").attempt, result(product, "quick")) == (1, 1)


def test_no_result_is_lost_or_mixed_while_agents_are_killed_at_the_end_of_runs() -> None:
    """Each run says when it ends, and its agent is killed in that moment."""
    with Product(agents=1, cpu="8") as product:
        for number in range(5):
            script = f'echo "[$ROOST_INDEX, {number}, $ROOST_ATTEMPT]" > $ROOST_RESULT'
            product.client.workloads.submit({"name": f"burst-{number}", "command": script, "count": 8, "fenced": False})
            kill_agent(product)
        names = [("default", f"burst-{number}") for number in range(5)]
        product.client.workloads.wait(names, timeout_s=120)
        for number, (project, name) in enumerate(names):
            found = product.client.instances.results(project, name)
            assert [item.data for item in found] == [[index, number, item.attempt] for index, item in enumerate(found)]
            assert len(found) == 8 and {item.state for item in found} == {"succeeded"}


def test_a_result_outlives_the_server_and_the_end_that_it_missed(tmp_path: Path) -> None:
    with Product(agents=1) as product:
        product.client.workloads.submit({"name": "early", "command": "echo 1 > $ROOST_RESULT"})
        product.client.workloads.wait([("default", "early")], timeout_s=60)
        product.client.workloads.submit({"name": "late", "command": GATED.format(tmp_path, "true")})
        product.wait_until(is_state(product, "late", "running"))
        product.kill_server()
        (tmp_path / "go").touch()
        product.start_server()
        product.wait_until(is_state(product, "late", "succeeded"))
        assert (result(product, "early"), result(product, "late")) == (1, 1)


def test_a_run_out_of_time_and_a_cancelled_one_leave_what_they_wrote() -> None:
    with Product(agents=1) as product:
        script = "echo '{\"done\": 0.5}' > $ROOST_RESULT; sleep 600"
        product.client.workloads.submit({"name": "slow", "command": script, "timeout": "1s", "retries": 0})
        product.wait_until(is_state(product, "slow", "timed_out"))
        assert result(product, "slow") == {"done": 0.5}
        product.client.workloads.submit({"name": "stop", "command": f"{script} & echo up; wait"})
        product.wait_until(lambda: product.client.logs.read("default", "stop") == b"up\n")
        product.wait_until(lambda: list(product.data.glob("*/work/*/.roost-result.json")))
        product.client.workloads.cancel("default", "stop")
        product.wait_until(is_state(product, "stop", "cancelled"))
        assert result(product, "stop") == {"done": 0.5}


def test_a_retry_has_its_own_result_and_the_file_goes_with_its_directory() -> None:
    with Product(agents=1) as product:
        script = "[ $ROOST_ATTEMPT = 3 ] || echo $ROOST_ATTEMPT > $ROOST_RESULT; exit $((3 - ROOST_ATTEMPT))"
        product.client.workloads.submit({"name": "again", "command": script, "retries": {"max": 2, "on": ["failed"]}})
        product.wait_until(is_state(product, "again", "succeeded"))
        shown = instance(product, "again")
        assert (shown.attempt, shown.result) == (3, None), "the third wrote none"
        product.wait_until(lambda: not list(product.data.glob("*/work/*/.roost-result.json")))


def test_a_run_posts_its_result_with_its_own_token(tmp_path: Path) -> None:
    with Product(agents=1) as product:
        script = f"echo $ROOST_ATTEMPT_TOKEN > {tmp_path}/token; while [ ! -e {tmp_path}/go ]; do sleep 0.01; done"
        product.client.workloads.submit({"name": "posts", "command": script})
        product.wait_until(lambda: (tmp_path / "token").exists() and (tmp_path / "token").read_text())
        product.wait_until(is_state(product, "posts", "running"))
        token = int((tmp_path / "token").read_text())
        product.client.instances.post_result("default", "posts", 0, token, data={"step": 1})
        assert result(product, "posts") == {"step": 1} and instance(product, "posts").state == "running"
        (tmp_path / "go").touch()
        product.wait_until(is_state(product, "posts", "succeeded"))
        assert result(product, "posts") == {"step": 1}
