"""Titles of pipelines and actions, and the names that are derived from them."""

from hypothesis import given
from hypothesis import strategies as st

from roost.model.spec.names import is_name
from roost.model.spec.pipelines.labels import DERIVED_LENGTH_MAX, action_of, job_name, name_of, service_of


def test_a_name_is_its_own_title() -> None:
    assert name_of("build") == "build"
    assert name_of("build_2-x") == "build_2-x"
    assert name_of("t" * 63) == "t" * 63


def test_other_titles_become_names() -> None:
    assert name_of("Unit tests") == "Unit-tests"
    assert name_of("  déjà: vu! ") == "deja-vu"
    assert name_of("-web-") == "web"
    assert name_of("測試") != name_of("部署")
    long = "Build the documentation of all packages"
    assert name_of(long).startswith("Build-the-documen-")
    assert name_of(long) != name_of(f"{long}!")


@given(st.text(min_size=1))
def test_every_title_has_a_name(title: str) -> None:
    name = name_of(title)
    assert is_name(name)
    assert name == title or len(name) <= DERIVED_LENGTH_MAX
    assert name_of(name) == name, "a name can stand for its title"


def test_labels_of_other_uses_are_no_action() -> None:
    labels = {"pipeline": "Web shop", "run": "1", "action": "Unit tests"}
    assert action_of(job_name("Web shop", "1", "Unit tests"), labels) == "Unit tests"
    assert action_of("web-1-test", labels) == ""
    assert action_of("web-1-test", {"action": "test"}) == ""


def test_a_service_is_known_by_its_label_and_its_name() -> None:
    labels = {"pipeline": "web", "run": "1", "action": "Unit tests", "service": "the db"}
    assert service_of("web-1-Unit-tests-the-db", labels) == "the db"
    assert service_of("web-1-Unit-tests", labels) == service_of("db", {"service": "db"}) == ""
