"""Rules about nodes: refused when they are no rules, and a no wherever they cannot be evaluated."""

import time

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roost.model.errors import Invalid
from roost.model.limits import RULE_LENGTH_MAX
from roost.model.records.node import Facts
from roost.model.spec.rule_parser import referenced_fields
from roost.model.spec.rules import EMPTY, FIELDS, Room, cache_key, check_rule, depends_on_usage, holds


def message_of(name: str, facts: Facts, room: Room = EMPTY) -> dict[str, object]:
    """All that a rule can speak about."""
    return {word: field(name, facts, room) for word, field in FIELDS.items()}


NODE = message_of(
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
    ("rule", "message"),
    [
        ("", "not a rule over a node: it is incomplete at character 1"),
        ("zone ==", "not a rule over a node"),
        ("planet == 'earth'", "planet"),
        ("zone == 3", "not a rule over a node"),
        ("zone", "a rule must say yes or no; this one is a string"),
        ("1 + 1", "a rule must say yes or no; this one is a int"),
        ("zone == '" + "x" * RULE_LENGTH_MAX + "'", f"a rule may have {RULE_LENGTH_MAX} characters"),
    ],
)
def test_what_is_no_rule_is_refused(rule: str, message: str) -> None:
    with pytest.raises(Invalid) as refused:
        check_rule(rule, "placement.require[0]")
    assert refused.value.path == "placement.require[0]"
    assert message in refused.value.message
    assert len(refused.value.message) < 400


# what a rule may cost

CPU_S_MAX = 0.05  # on one node


def balanced(word: str, times: int, mark: str = "+") -> str:
    """The same word many times over, as flat as it can be: deep expressions are refused by the parser."""
    if times <= 1:
        return word
    return f"({balanced(word, times // 2, mark)}{mark}{balanced(word, times - times // 2, mark)})"


ONES = "[" + ",".join("1" * 200) + "]"
LARGE_NODE = message_of(
    "n" * 63,
    Facts(
        {f"r{number}": 1 for number in range(32)},
        labels={f"l{number}": "x" * 256 for number in range(64)},
        drivers=tuple("d" * 63 for _ in range(16)),
        taints=tuple(f"t{number}" + "y" * 250 for number in range(32)),
    ),
)


@pytest.mark.parametrize(
    "rule",
    [
        f"labels.all(k, {balanced('labels[k]', 70)} != '')",
        f"taints.all(k, {balanced('k', 230)} != '')",
        f"taints.all(k, {balanced('k', 200)}.contains('yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyx') || true)",
        f"{ONES}.all(k, {balanced('labels.l1', 40)}.contains('xxxxxxxxxxxxxxxxxxxxxxxy') || true)",
        f"{ONES}.map(k, {ONES}).size() > 0",
        f"{ONES}.filter(k, k in {ONES}).size() > 0",
        f"{ONES}.all(k, {balanced('k==1', 60, '&&')})",
        f"{balanced('labels.l1', 55)}.matches('{'(x?)' * 70}z')",
        "name.matches('" + "(.*)" * 200 + "z')",
        " && ".join(["!labels.l1.matches('" + "(x?)" * 20 + "z')"] * 8),
        "!" * 990 + "true",
        " || ".join(["name == 'a'"] * 60),
    ],
)
def test_the_worst_rules_that_are_taken_end_within_their_budget(rule: str) -> None:
    check_rule(rule, "require")
    holds("true", LARGE_NODE)
    spent = []
    for _ in range(3):  # the best of some: the machine may be busy with something else
        began = time.process_time()
        holds(rule, LARGE_NODE)
        spent.append(time.process_time() - began)
    assert min(spent) < CPU_S_MAX


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("labels.all(k, labels.all(j, k != j))", "walk over 1 list"),
        ("drivers.exists(d, d != '') || taints.exists_one (t, t == 'x')", "walk over 1 list"),
        ("drivers.map(d, d + d).map(e, e + e) != []", "walk over 1 list"),
        ("drivers.exists(d, d.matches('q.*'))", "not both"),
        ("name.matches('(((a{30}){10}){3})')", "cannot count"),
        ("name.matches(r'a{30}')", "cannot count"),
        ("name.matches('a\\x7b30}')", "by number"),
        ("name.matches('a\\u007b30}')", "by number"),
        ("name.matches('a' + name)", "one text in quotes"),
        ("name.matches(labels.pattern)", "one text in quotes"),
        ("name.matches(('a'))", "one text in quotes"),
        ("matches(name, zone)", "one text in quotes"),
        (" || ".join(["name.matches('a')"] * 9), "8 patterns"),
        ("(" * 300 + "true" + ")" * 300, "not a rule over a node"),
        ("[" * 200 + "]" * 200 + " == []", "not a rule over a node"),
    ],
)
def test_what_could_take_long_is_refused(rule: str, message: str) -> None:
    with pytest.raises(Invalid) as refused:
        check_rule(rule, "require")
    assert message in refused.value.message


@pytest.mark.parametrize("rule", ["name.matches('^n[0-9]+$')", "matches(name, r'\\w+')", 'name . matches ( "n.*" )'])
def test_plain_patterns_are_fine(rule: str) -> None:
    check_rule(rule, "require")
    assert holds(rule, NODE) == (True, "")


def test_a_rule_over_its_budget_is_a_no_with_words() -> None:
    yes, trouble = holds(f"{ONES}.all(x, {ONES}.all(y, x == y))", NODE)  # never taken, but it may have been stored
    assert not yes
    assert "budget" in trouble


# what a rule speaks of


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("labels.used == 'x'", {"labels": ("used",)}),
        ("used.cpu > 1 && free['gpu'] > 2", {"used": ("cpu",), "free": ("gpu",)}),
        ("'used.cpu' == name // used", {"name": None}),
        ("'a' in labels && has(labels.b) && labels['c'] == ''", {"labels": ("a", "b", "c"), "has": None, "in": None}),
        ("labels.a == '' && labels.size() > 1", {"labels": None}),
        ("labels.exists(k, k == 'a')", {"labels": None, "k": None}),
        ("name + 'x' in labels", {"labels": None, "name": None, "in": None}),
        (".used.cpu > 1", {"used": ("cpu",)}),
        ("[1].exists(used, used == 1)", {"used": None}),
    ],
)
def test_the_words_of_a_rule_and_the_keys_it_names(rule: str, message: dict[str, tuple[str, ...] | None]) -> None:
    assert {other_spoken.word: other_spoken.keys for other_spoken in referenced_fields(rule)} == message
    assert depends_on_usage(rule) == bool({"used", "free"} & set(message))


def test_nodes_that_differ_in_what_a_rule_does_not_speak_of_sound_alike() -> None:
    first = Facts({"cpu": 1}, labels={"disk": "nvme", "team": "web"}, zone="a")
    second = Facts({"cpu": 2}, labels={"disk": "nvme"}, zone="a", rack="r")
    rule = "labels.disk == 'nvme' && zone == 'a'"
    assert cache_key(rule, "n1", first) == cache_key(rule, "n2", second)
    assert cache_key(f"{rule} && capacity.cpu > 1", "n1", first) != cache_key(
        f"{rule} && capacity.cpu > 1", "n2", second
    )


ATOMS = st.sampled_from(
    [
        "labels.a == 'x'",
        "labels['b'] == 'y'",
        "'a' in labels",
        "'a' + 'b' in labels",
        "has(labels.b)",
        "size(labels) == 1",
        "labels.exists(k, k == 'a')",
        "labels.size() > 1",
        "labels == {'a': 'x'}",
        "labels[name] == 'x'",
        "name == 'a'",
        "zone == 'labels.a'",
        'zone != "it\'s labels"',
        "capacity.cpu > 1",
        "capacity['cpu'] == used.cpu",
        "free.cpu > 0",
        "'gpu' in capacity",
        "taints.exists(t, t == 'a')",
        "rack == r'\\d' || zone == 'z'",
        "capacity.all(c, capacity[c] > 0)",
        "drivers == ['process']",
        ".labels.b == 'y'",
        "['a', 'b'].exists(labels, labels == 'a')",
        "true ? has(labels.a) : false",
    ]
)
RULES = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["&&", "||"]), inner).map(lambda item: f"({item[0]} {item[1]} {item[2]})"),
        inner.map(lambda item: f"!({item})"),
    ),
    max_leaves=4,
)
NODES = st.builds(
    lambda name, labels, zone, resources, taints: (name, Facts(resources, labels, zone=zone, taints=taints)),
    st.sampled_from(["a", "b"]),
    st.dictionaries(st.sampled_from(["a", "b", "ab"]), st.sampled_from(["x", "y"])),
    st.sampled_from(["z", "labels.a"]),
    st.dictionaries(st.sampled_from(["cpu", "gpu"]), st.integers(0, 3)),
    st.sampled_from([(), ("a",)]),
)


@given(rule=RULES, node=NODES, used=st.integers(0, 3))
def test_what_is_heard_of_a_node_is_enough_to_answer(rule: str, node: tuple[str, Facts], used: int) -> None:
    name, facts = node
    room = (
        {resource: used for resource in facts.resources},
        {resource: n - used for resource, n in facts.resources.items()},
    )
    received = msgspec.msgpack.decode(cache_key(rule, name, facts, room))
    assert holds(rule, received)[0] == holds(rule, message_of(name, facts, room))[0]


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("zone ==", "it is incomplete at character 8"),
        ("(zone == 'a'", "it is incomplete at character 13"),
        ("lables.x == 'a'", "nothing is called `lables`; did you mean `labels`?"),
        ("zone == 1", "`==` at character 6 does not take a text and a whole number"),
        ("free.cpu > 1.5", "`>` at character 10 does not take a whole number and a number with a point"),
        ("'a' in zone", "`in` at character 5 does not take a text and a text"),
        ("zone = 'a'", "it cannot be read from character 6 on: \"= 'a'\"; write `==`"),
        ("zone == 'a' and true", "it cannot be read from character 13 on: 'and true'; write `&&`"),
        ("zone ==\n1", "`==` at character 6 does not take a text and a whole number"),
        ("zone == 'a' &&\n)", "it cannot be read from line 2, character 1 on: ')'"),
    ],
)
def test_a_rule_that_cannot_be_read_is_refused_in_our_own_words(rule: str, message: str) -> None:
    with pytest.raises(Invalid) as refused:
        check_rule(rule, "x")
    assert refused.value.message == f"not a rule over a node: {message}"
