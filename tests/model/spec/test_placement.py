"""The placement block: what is taken, and what is refused with which path and sentence."""

from typing import Any

import pytest

from roost.model import limits
from roost.model.errors import Invalid
from roost.model.records.workload import AffinityRule, AffinityRules, Ask, SpreadRule
from roost.model.spec.document import check_document, read_document


def ask_of(count: int = 1, **placement: Any) -> Ask:
    document = {"name": "web", "command": "true", "count": count, "placement": placement}
    return check_document(read_document(document)).ask


def refusal(count: int = 1, **placement: Any) -> Invalid:
    with pytest.raises(Invalid) as refused:
        ask_of(count, **placement)
    assert refused.value.status == 422
    return refused.value


def test_every_field_is_read() -> None:
    ask = ask_of(
        pool=["b", "a"],
        region="eu",
        strategy="best_fit",
        require=["zone == 'a'", "free.cpu > 10"],
        prefer=[{"that": "labels.disk == 'nvme'", "weight": 5}, {"that": "zone == 'b'", "weight": 0}],
        tolerate=["gpu", "*", "team=web:soft"],
        gpu_model=["T4", "A100"],
        near=[{"workload": "cache", "by": "zone"}],
        apart=[{"workload": "other/db", "by": "rack", "weight": 7}],
        avoid=[{"label": "noisy"}],
        spread={"by": "zone", "max_skew": 2},
        per_node=3,
    )
    assert (ask.pools, ask.regions, ask.gpu_models) == (("a", "b"), ("eu",), ("A100", "T4"))
    assert (ask.require, ask.require_now) == (("zone == 'a'",), ("free.cpu > 10",))
    assert ask.prefer == (("labels.disk == 'nvme'", 5),)
    assert ask.tolerate == ("*", "gpu", "team=web")
    assert ask.affinity == AffinityRules(
        "default/web",
        (
            AffinityRule("near", "default/cache", "zone", 0),
            AffinityRule("apart", "other/db", "rack", 7),
            AffinityRule("avoid", "default?noisy", "node", 10),
        ),
        (SpreadRule("zone", 2, 0),),
        3,
    )


def test_without_affinity_there_is_no_affinity_rule() -> None:
    assert ask_of(near=[], apart=[], spread=[]).affinity is None


@pytest.mark.parametrize(
    ("placement", "path", "message"),
    [
        ({"require": ["zone == 3"]}, "placement.require[0]", "not a rule over a node"),
        ({"require": ["true", "zone + 'a'"]}, "placement.require[1]", "must say yes or no"),
        ({"require": ["true"] * 33}, "placement.require", "0 to 32 rules"),
        ({"require": "zone == 'a'"}, "placement.require", "this is a list, not \"zone == 'a'\""),
        ({"prefer": [{"that": "zone =="}]}, "placement.prefer[0].that", "not a rule over a node"),
        ({"prefer": [{"that": "free.cpu > 1"}]}, "placement.prefer[0].that", "what a node is"),
        ({"prefer": [{"that": "true", "weight": 101}]}, "placement.prefer[0].weight", "-100 to 100, not 101"),
        ({"prefer": [{"that": "true", "weight": -101}]}, "placement.prefer[0].weight", "-100 to 100"),
        (
            {"prefer": [{"that": "true", "weight": 1.5}]},
            "placement.prefer[0].weight",
            "this is a whole number, not 1.5",
        ),
        ({"prefer": [{"weight": 5}]}, "placement.prefer[0].that", "this is needed: a text"),
        ({"tolerate": [""]}, "placement.tolerate[0]", "KEY or KEY=VALUE"),
        ({"tolerate": ["=x"]}, "placement.tolerate[0]", "KEY or KEY=VALUE"),
        ({"tolerate": ["gpu=yes:NoSchedule"]}, "placement.tolerate[0]", "KEY or KEY=VALUE"),
        ({"tolerate": [f"t{number}" for number in range(33)]}, "placement.tolerate", "0 to 32 taints"),
        ({"near": [{}]}, "placement.near[0]", "either a workload or a label"),
        ({"near": [{"workload": "a", "label": "b"}]}, "placement.near[0]", "either a workload or a label"),
        ({"near": [{"workload": "a b"}]}, "placement.near[0].workload", "a name is made of"),
        ({"near": [{"workload": "/a"}]}, "placement.near[0].workload", "a name cannot be empty"),
        ({"near": [{"workload": "a/b/c"}]}, "placement.near[0].workload", "a name is made of"),
        ({"near": [{"workload": "a", "by": "planet"}]}, "placement.near[0].by", "planet"),
        ({"near": [{"workload": "a", "weight": 0}]}, "placement.near[0].weight", "1 to 100, not 0"),
        ({"apart": [{"label": "x\ny"}]}, "placement.apart[0].label", "one line"),
        ({"avoid": [{"label": "x", "weight": -5}]}, "placement.avoid[0].weight", "1 to 100, not -5"),
        ({"apart": [{"workload": f"w{number}"} for number in range(33)]}, "placement.apart", "0 to 32 rules"),
        ({"spread": {"max_skew": 0}}, "placement.spread.max_skew", "1 to 10,000, not 0"),
        ({"spread": [{}, {"weight": 101}]}, "placement.spread[1].weight", "1 to 100, not 101"),
        ({"spread": {"by": "street"}}, "placement.spread.by", "street"),
        ({"per_node": 0}, "placement.per_node", "1 to 10,000, not 0"),
        ({"per_node": 10**30}, "placement.per_node", ""),
        ({"pool": ["a"] * 65}, "placement.pool", "0 to 64 pools"),
        ({"region": "a\nb"}, "placement.region", "one line"),
        ({"affinity": {}}, "placement.affinity", "there is no such field"),
    ],
)
def test_what_is_wrong_is_refused_with_its_path(placement: dict[str, Any], path: str, message: str) -> None:
    error = refusal(**placement)
    assert error.path == path, error
    assert message in error.message


@pytest.mark.parametrize(
    ("near", "apart", "is_possible"),
    [
        ("node", "node", False),
        ("node", "zone", False),
        ("rack", "region", False),
        ("zone", "node", True),
        ("region", "rack", True),
    ],
)
def test_near_and_apart_of_one_subject_are_refused_where_no_node_can_do_both(
    near: str, apart: str, is_possible: bool
) -> None:
    rules = {"near": [{"workload": "db", "by": near}], "apart": [{"workload": "default/db", "by": apart}]}
    if is_possible:
        assert ask_of(**rules).affinity is not None
    else:
        error = refusal(**rules)
        assert (error.code, error.path) == ("contradiction", "placement.near")
    rules["near"][0]["weight"] = 50
    assert ask_of(**rules).affinity is not None, "a wish contradicts nothing"
    rules["apart"][0]["workload"] = "other"
    assert ask_of(**rules).affinity is not None


def test_all_on_one_node_and_not_all_on_one_node_is_refused() -> None:
    together = [{"workload": "web"}]
    error = refusal(5, near=together, per_node=4)
    assert (error.code, error.path) == ("contradiction", "placement.per_node")
    assert ask_of(4, near=together, per_node=4).affinity is not None
    assert ask_of(5, near=[{"workload": "web", "by": "zone"}], per_node=4).affinity is not None


def test_equal_rules_make_equal_asks_however_they_are_written() -> None:
    assert ask_of(pool="a", tolerate=["x", "y", "x:soft"]) == ask_of(pool=["a", "a"], tolerate=["y", "x"])
    assert ask_of(spread={"by": "zone"}) == ask_of(spread=[{"by": "zone", "max_skew": 1}])
    assert ask_of(near=[{"workload": "x"}]) == ask_of(near=[{"workload": "default/x", "by": "node"}])


def test_the_limits_are_what_the_tests_say() -> None:
    assert (limits.RULES_MAX, limits.WEIGHT_MAX, limits.TAINTS_MAX, limits.POOLS_MAX) == (32, 100, 32, 64)
