"""Why of a schedule: it runs at its next tick, in its zone; not now because of maintenance; or never again."""

import pytest

from roost.core.explain.advice import advise
from roost.core.explain.why import why
from roost.core.watch import coming_ticks
from roost.model.errors import NotFound
from roost.model.events import Maintain
from roost.schema.reason_text import render_text
from tests.core.lifecycle.test_schedules import moment, nightly, parent, runs, scene_at


def test_why_says_when_a_schedule_runs_next_in_its_zone_and_as_data() -> None:
    scene = scene_at("2026-10-24T22:00Z")
    scene.submit(nightly("30 2 * * *", zone="Europe/Berlin"))
    answer, advice = advise(scene.state, "default/nightly")
    assert (answer.state, answer.code, answer.instance) == ("scheduled", "schedule", "default/nightly")
    assert render_text(answer.text) == (
        "default/nightly runs by its schedule, next at 2026-10-25 02:30+02:00 (Europe/Berlin)"  # the first of two
    )
    assert (advice.verdict, advice.estimate.earliest_ms) == ("wait", moment("2026-10-25T00:30Z"))
    with pytest.raises(NotFound, match="has no instances"):
        why(scene.state, "default/nightly", 0)


def test_the_two_hours_of_a_long_night_differ() -> None:
    scene = scene_at("2026-10-25T00:40Z")
    scene.submit(nightly("*/30 * * * *", zone="Europe/Berlin"))
    assert "next at 2026-10-25 02:00+01:00 (" in render_text(why(scene.state, "default/nightly").text)
    ticks = coming_ticks(scene.state, parent(scene), 3, scene.now)
    assert ticks == [moment(f"2026-10-25T{clock}Z") for clock in ("01:00", "01:30", "02:00")]


def test_during_maintenance_the_next_tick_is_not_one_that_has_passed() -> None:
    scene = scene_at("2026-03-01T10:30Z")
    scene.submit(nightly(catch_up=0))
    scene.step(Maintain(1, on=True, reason="new switches"))
    scene.wait("3h")
    assert runs(scene) == []
    message = render_text(why(scene.state, "default/nightly").text)
    assert message == (
        "default/nightly runs by its schedule, next at 2026-03-01 14:00+00:00 (UTC);"
        " ticks make no runs during maintenance since 3h: new switches"
    )


def test_a_schedule_that_has_ended_has_no_next_tick() -> None:
    scene = scene_at("2026-03-01T10:30Z")
    scene.submit(nightly())
    scene.cancel("nightly")
    answer, advice = advise(scene.state, "default/nightly")
    assert (answer.state, answer.code, advice.estimate) == ("cancelled", "cancelled", None)
    assert coming_ticks(scene.state, parent(scene), 5, scene.now) == []
