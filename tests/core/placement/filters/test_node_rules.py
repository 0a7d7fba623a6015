"""Rules about nodes: who may come (node_rules, taints, pool, region, driver, resources) and who had better (prefer)."""

import pytest

from roost.core.placement.filters import rules as node_rules
from roost.core.placement.strategies import STRATEGIES
from roost.model.records.node import Facts
from roost.model.spec import rules
from tests.core.fleet_builder import FleetBuilder, asked
from tests.core.scene import facts_of

EVERY_STRATEGY = sorted(STRATEGIES)


# require


def test_every_rule_must_hold() -> None:
    builder = FleetBuilder()
    builder.node("a", zone="a", arch="arm64")
    builder.node("b", zone="b", arch="amd64")
    builder.node("c", zone="b", arch="arm64")
    rules = ["zone in ['b', 'c']", "arch == 'arm64'"]
    assert builder.place("web", require=rules) == "c"
    assert builder.blockers("web", require=rules) == {
        "require: zone in ['b', 'c']; arch == 'arm64' does not hold": 2,
    }


def test_a_rule_that_cannot_be_evaluated_is_a_no_and_says_why() -> None:
    builder = FleetBuilder("a", "b")
    builder.node("c", labels={"disk": "nvme"})
    assert builder.place("web", require=["labels.disk == 'nvme'"]) == "c"
    (message,) = builder.blockers("web", require=["labels.disk == 'nvme'"])
    assert (
        message.startswith("require: labels.disk == 'nvme' (")
        and "disk" in message
        and message.endswith("does not hold")
    )
    (message,) = builder.blockers("web", require=["capacity.cpu / (capacity.cpu - 4000) > 1"])
    assert "divide by zero" in message


def test_a_rule_may_speak_of_what_is_in_use() -> None:
    builder = FleetBuilder("a", "b", cpu=4, strategy="first_fit")
    half_free = ["used.cpu * 2 < capacity.cpu"]
    assert builder.places("web", 6, require=half_free) == ["a", "a", "b", "b", "", ""]
    assert builder.blockers("web", require=half_free) == {"require: used.cpu * 2 < capacity.cpu does not hold now": 2}
    assert builder.place("other", require=["free.cpu >= 2000"]) == "a"
    assert builder.place("other", require=["free.cpu >= 2000"]) == "b"
    builder.end("web")
    builder.end("web")
    assert builder.place("web", require=half_free) == "a"


def test_a_label_that_is_called_used_is_a_label() -> None:
    builder = FleetBuilder("a")
    builder.node("b", labels={"used": "yes", "free": "no"})
    policy, _ = asked("web", require=["labels.used == 'yes' && labels['free'] == 'no'"])
    assert (len(policy.ask.require), len(policy.ask.require_now)) == (1, 0)
    assert builder.place("web", require=["labels.used == 'yes' && labels['free'] == 'no'"]) == "b"
    assert builder.place("web", prefer=[{"that": "labels.used == 'yes'", "weight": 100}]) == "b"


def test_nodes_that_are_alike_in_all_a_rule_speaks_of_are_asked_about_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked_about = []

    def counted(rule: str, node: dict) -> tuple[bool, str]:
        asked_about.append(node)
        return rules.holds(rule, node)

    monkeypatch.setattr(node_rules, "holds", counted)
    node_rules.evaluate_rule.cache_clear()
    builder = FleetBuilder()
    for number in range(60):
        labels = {"disk": "nvme" if number % 2 else "sata", "serial": str(number)}
        builder.node(f"n{number:02}", cpu=4 + number % 5, zone="abc"[number % 3], labels=labels)
    rule = "labels.disk == 'nvme' && zone != 'a'"
    went = builder.places("web", 10, require=[rule])
    assert all(int(name[1:]) % 2 and int(name[1:]) % 3 for name in went)
    assert len(asked_about) == 6, "two disks, three zones"
    assert builder.place("again", require=[rule], resources={"cpu": 2})
    builder.node("n99", zone="a", labels={"disk": "nvme", "serial": "99"})
    builder.place("again", require=[rule])
    assert len(asked_about) == 6, "the same question has the same answer for every caller"
    builder.place("names", require=["name != 'n05'"])
    assert len(asked_about) == 6 + 61
    node_rules.evaluate_rule.cache_clear()


def test_fields_are_packed_once_for_nodes_that_a_rule_cannot_tell_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    packed = []

    def counted(rule: str, name: str, facts: Facts) -> bytes:
        packed.append(name)
        return rules.cache_key(rule, name, facts)

    monkeypatch.setattr(node_rules, "cache_key", counted)
    builder = FleetBuilder()
    for number in range(60):
        labels = {"disk": "nvme" if number % 2 else "sata", "serial": str(number)}
        builder.node(f"n{number:02}", cpu=4 + number % 5, zone="abc"[number % 3], labels=labels)
    for rule, kinds in (("labels.disk == 'nvme' && zone != 'a'", 6), ("capacity.cpu > 5000", 5), ("1 < 2", 1),
                        ("size(labels) == 2", 60), ("name != 'n05'", 60)):  # fmt: skip
        packed.clear()
        builder.place("web", require=[rule])
        assert len(packed) == kinds, rule


def test_what_is_in_use_is_asked_about_once_per_amount(monkeypatch: pytest.MonkeyPatch) -> None:
    asked_about = []

    def counted(rule: str, node: dict) -> tuple[bool, str]:
        asked_about.append(node)
        return rules.holds(rule, node)

    monkeypatch.setattr(node_rules, "holds", counted)
    node_rules.evaluate_rule.cache_clear()
    builder = FleetBuilder(*[f"n{number}" for number in range(50)], cpu=4, strategy="first_fit")
    assert builder.places("web", 100, require=["used.cpu < 2000"])[-1] == "n9"
    assert [item["used"] for item in asked_about] == [{"cpu": 0}, {"cpu": 1_000}, {"cpu": 2_000}]
    node_rules.evaluate_rule.cache_clear()


@pytest.mark.parametrize(
    ("rule", "node"),
    [
        ("labels.exists(k, k == 'team')", "c"),
        ("labels.all(k, k != 'team') && labels.size() == 1", "b"),
        ("size(labels) == 2", "c"),
        ("'te' + 'am' in labels", "c"),
        ("'te' + \"am\" in labels && !('x' in labels)", "c"),
        ("\"it's\" in labels", "b"),
        ("labels == {\"it's\": 'b'}", "b"),
        ("has(labels.team) && labels[r'team'] == 'web'", "c"),
        ("name == r'\\d' || labels.team == 'web' || name == ''", "c"),
        ("name == '''x''' || labels.team == 'web' // labels.x", "c"),
        ("['team'].exists(k, k in labels)", "c"),
        (".labels.team == 'web'", "c"),
        ("'team' in labels ? labels.team == 'web' : false", "c"),
    ],
)  # fmt: skip
def test_every_way_a_rule_names_labels_is_found(rule: str, node: str) -> None:
    builder = FleetBuilder("a")
    builder.node("b", labels={"it's": "b"})
    builder.node("c", labels={"team": "web", "x1": "1"})
    assert builder.place("web", require=[rule]) == node


# prefer


@pytest.mark.parametrize("strategy", EVERY_STRATEGY)
def test_what_is_preferred_is_taken_if_it_can_be_with_every_strategy(strategy: str) -> None:
    for drawn in range(4):
        builder = FleetBuilder("a", "b", "d", cpu=4, strategy=strategy)
        builder.node("c", cpu=4, labels={"disk": "nvme"})
        wish = [{"that": "labels.disk == 'nvme'", "weight": 100}]
        assert builder.places("web", 4, prefer=wish, drawn=drawn) == ["c"] * 4
        assert builder.place("web", prefer=wish, drawn=drawn) in ("a", "b", "d"), "a wish is no condition"


@pytest.mark.parametrize("strategy", EVERY_STRATEGY)
def test_a_negative_weight_is_a_wish_that_it_be_not_so(strategy: str) -> None:
    for drawn in range(4):
        builder = FleetBuilder("a", "b", cpu=1, zone="a", strategy=strategy)
        builder.node("c", cpu=1, zone="b")
        wish = [{"that": "zone == 'a'", "weight": -100}]
        assert builder.place("web", prefer=wish, drawn=drawn) == "c"
        assert builder.place("web", prefer=wish, drawn=drawn) in ("a", "b")


def test_a_wish_of_weight_w_moves_a_node_by_w_hundredths_of_the_strategys_range() -> None:
    builder = FleetBuilder(cpu=10)
    builder.node("busy", cpu=10, memory=0, disk=0, labels={"disk": "nvme"})
    builder.node("idle", cpu=10, memory=0, disk=0)
    assert builder.place("load", require=["name == 'busy'"], resources={"cpu": 5}) == "busy"
    assert builder.scores("web") == {"busy": 800, "idle": 1000}  # 0.4 of half
    weight = lambda number: [{"that": "labels.disk == 'nvme'", "weight": number}]  # noqa: E731
    assert builder.scores("web", prefer=weight(10)) == {"busy": (80_000 + 10_000) // 110, "idle": 100_000 // 110}
    assert builder.place("web", prefer=weight(10), resources={"cpu": "1m"}) == "idle"
    assert builder.place("web", prefer=weight(30), resources={"cpu": "1m"}) == "busy"
    assert builder.scores("web", prefer=weight(-100))["busy"] == 399


def test_wishes_add_up() -> None:
    builder = FleetBuilder()
    builder.node("a", zone="a", labels={"disk": "nvme"})
    builder.node("b", zone="b", labels={"disk": "nvme"})
    builder.node("c", zone="b")
    wishes = [{"that": "zone == 'b'", "weight": 50}, {"that": "labels.disk == 'nvme'", "weight": 20}]
    assert builder.scores("web", prefer=wishes) == {
        "a": 120_000 // 170,
        "b": 1000,
        "c": 150_000 // 170,
    }


# taints


def test_a_tainted_node_takes_only_an_instance_that_tolerates_it() -> None:
    builder = FleetBuilder()
    builder.node("a", taints=("gpu",))
    builder.node("b", taints=("team=web", "old"))
    assert builder.place("any") == ""
    assert builder.blockers("any") == {"taint gpu, team=web, old is not tolerated": 2}
    assert builder.place("x", tolerate=["gpu"]) == "a"
    assert builder.place("x", tolerate=["team=web"]) == ""
    assert builder.place("x", tolerate=["team=web", "old"]) == "b"
    assert builder.place("x", tolerate=["team", "old"]) == "b", "KEY is any value of it"
    assert builder.place("x", tolerate=["team=ops", "old"]) == ""
    assert builder.places("all", 6, tolerate=["*"]).count("") == 1


@pytest.mark.parametrize("strategy", EVERY_STRATEGY)
def test_a_soft_taint_is_kept_away_from_as_long_as_there_is_another(strategy: str) -> None:
    for drawn in range(3):
        builder = FleetBuilder(strategy=strategy)
        builder.node("a", cpu=2, taints=("spot=yes:soft",))
        builder.node("b", cpu=2)
        assert builder.places("web", 2, drawn=drawn) == ["b", "b"]
        assert builder.place("web", drawn=drawn) == "a"


def test_an_instance_that_tolerates_a_soft_taint_does_not_mind_it() -> None:
    builder = FleetBuilder()
    builder.node("a", taints=("spot=yes:soft",))
    builder.node("b")
    for tolerated in ("spot", "spot=yes", "spot=yes:soft", "*"):
        assert builder.scores("web", tolerate=[tolerated])["a"] == builder.scores("web", tolerate=[tolerated])["b"]
    assert builder.scores("web", tolerate=["spot=no"])["a"] < builder.scores("web", tolerate=["spot=no"])["b"]


# pools, regions, drivers


def test_pools_and_regions_that_are_named_are_the_only_ones() -> None:
    builder = FleetBuilder()
    builder.node("a", pool="ci", region="eu")
    builder.node("b", pool="ml", region="eu")
    builder.node("c", pool="ml", region="us")
    assert builder.place("x", pool="ml", region="us") == "c"
    assert builder.place("x", pool=["ci", "other"]) == "a"
    assert builder.place("x", pool="ml", region=["asia", "eu"]) == "b"
    assert builder.blockers("x", pool=["z", "y"], region="mars") == {"pool: not in y or z": 3, "region: not in mars": 3}


def test_work_goes_to_nodes_that_have_its_driver() -> None:
    builder = FleetBuilder()
    builder.node("a", drivers=("process",), memory="2GiB")
    builder.node("b", drivers=("container", "process"), memory="2GiB")
    builder.node("c", drivers=("qemu",), memory="2GiB")
    machine = {"kind": "vm", "vm": {"kernel": "blob:linux"}, "resources": {"memory": "1GiB"}}
    assert builder.place("box", image="python:3.12") == "b"
    assert builder.place("machine", **machine) == "c"
    assert builder.blockers("other", **machine) == {"driver: has no qemu driver": 2}


# countable resources


def test_any_other_resource_is_counted() -> None:
    builder = FleetBuilder("a")
    builder.node("b", more={"licence": 3, "fpga": 1})
    two = {"cpu": 0, "licence": 2}
    assert builder.place("x", resources=two) == "b"
    assert builder.place("x", resources=two) == ""
    assert builder.blockers("x", resources=two) == {
        "capacity: needs 2 licence, the largest has 0 licence": 1,
        "resources: needs 2 licence, at most 1 licence free": 2,
    }
    assert builder.place("y", resources={"licence": 1, "fpga": 1}) == "b"
    builder.end("x")
    assert builder.place("x", resources=two) == "b"
    assert builder.blockers("z", resources={"dongle": 1})["capacity: needs 1 dongle, the largest has 0 dongle"] == 2


def test_a_node_that_tells_of_itself_anew_is_asked_anew() -> None:
    builder = FleetBuilder("a", "b")
    assert builder.place("web", require=["zone == 'z'"]) == ""
    builder.node("b", facts=facts_of(zone="z"))
    assert builder.place("web", require=["zone == 'z'"]) == "b"
    builder.node("b", facts=facts_of(zone="z", taints=("no",)))
    assert builder.place("web", require=["zone == 'z'"]) == ""
