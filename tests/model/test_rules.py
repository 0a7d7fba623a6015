"""Rules about nodes: refused when they are no rules, and a no wherever they cannot be evaluated."""

import pytest

from roost.model.errors import Invalid
from roost.model.limits import RULE_LENGTH_MAX
from roost.model.node import Facts
from roost.model.rules import check_rule, holds, words_of

NODE = words_of(
    "n1",
    Facts(
        {"cpu": 4_000, "memory": 1 << 34, "gpu": 2_000},
        labels={"disk": "nvme", "team": "web"},
        zone="a",
        rack="r7",
        region="eu",
        pool="ci",
        arch="arm64",
        drivers=("process", "container"),
    ),
)


@pytest.mark.parametrize(
    ("rule", "yes"),
    [
        ("labels.disk == 'nvme'", True),
        ("labels['disk'] == 'sata'", False),
        ("zone in ['a', 'b'] && region == 'eu'", True),
        ("pool == 'ci' || pool == 'other'", True),
        ("arch.startsWith('arm')", True),
        ("'container' in drivers", True),
        ("'qemu' in drivers", False),
        ("capacity.gpu >= 1000", True),
        ("capacity.cpu > 4000", False),
        ("has(labels.team)", True),
        ("!has(labels.noisy)", True),
        ("name == 'n1' && rack == 'r7'", True),
        ("true", True),
    ],
)
def test_rules(rule: str, yes: bool) -> None:
    check_rule(rule, "require")
    assert holds(rule, NODE) == (yes, "")


def test_what_a_node_does_not_say_is_a_no_with_the_reason() -> None:
    yes, trouble = holds("labels.site == 'here'", NODE)
    assert not yes
    assert "site" in trouble


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ("", "not a rule over a node (name, labels, zone, rack, region, pool, arch, drivers, gpu_model, taints, capacity, used, free)"),
        ("zone ==", "not a rule over a node"),
        ("planet == 'earth'", "planet"),
        ("zone == 3", "not a rule over a node"),
        ("zone", "a rule must say yes or no; this one is a string"),
        ("1 + 1", "a rule must say yes or no; this one is a int"),
        ("zone == '" + "x" * RULE_LENGTH_MAX + "'", f"a rule may have {RULE_LENGTH_MAX} characters"),
    ],
)
def test_what_is_no_rule_is_refused(rule: str, words: str) -> None:
    with pytest.raises(Invalid) as refused:
        check_rule(rule, "placement.require[0]")
    assert refused.value.path == "placement.require[0]"
    assert words in refused.value.message
    assert len(refused.value.message) < 400
