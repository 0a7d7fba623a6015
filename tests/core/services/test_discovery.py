"""Where services are, and what dependents learn of that."""

from roost.core.orders import ServiceAddress, addresses_of
from tests.core.scene import Scene, job, service


def test_a_run_learns_where_the_services_are() -> None:
    scene = Scene()
    scene.hello("n", address="10.0.0.5")
    scene.hello("m", address="fe80::1")
    scene.submit(service("my-db", count=3, ports={"sql": 0, "web-ui": 0}, placement={"per_node": 2}))
    scene.running("my-db.0", "my-db.1")
    scene.running("my-db.2", ready=False)
    scene.submit(job("load", after=["my-db"], env={"A": "1"}))
    found = addresses_of(scene.state, scene.state.workloads["default/my-db"])
    assert [(address.index, address.ready, list(address.ports)) for address in found] == [
        (0, True, ["sql", "web-ui"]),
        (1, True, ["sql", "web-ui"]),
        (2, False, ["sql", "web-ui"]),
    ]
    run = next(run for run in scene.runs.values() if run.workload == "default/load")
    answer = dict(run.env)
    assert answer.keys() == {"ROOST_MY_DB_SQL", "ROOST_MY_DB_WEB_UI"}
    assert answer["ROOST_MY_DB_SQL"] == ",".join(_joined(address, "sql") for address in found[:2])


def _joined(address: ServiceAddress, port: str) -> str:
    host = f"[{address.host}]" if ":" in address.host else address.host
    return f"{host}:{address.ports[port]}"
