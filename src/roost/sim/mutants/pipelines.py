"""Rules of conditions, approval, superseding and services of actions switched off, one at a time; see core.py."""

from roost.core import step
from roost.core.dependencies import release
from roost.core.lifecycle import commands
from roost.sim.mutants.core import without

without(
    "approval_is_not_waited_for",
    "A workload that needs approval starts when its dependencies are over.",
    (release, "approval_of", lambda workload: ()),
)
without(
    "conditions_are_not_evaluated",
    "A workload starts when its dependencies are over, whatever its condition says.",
    (release, "condition_refusal", lambda state, workload: None),
)
without(
    "superseded_runs_go_on",
    "Newer work of a concurrency group leaves older work alone.",
    (commands, "supersede", lambda state, out, new, now: iter(())),
)
without(
    "services_outlive_their_owner",
    "A service with `until` goes on when its owner has finished.",
    (step, "stop_companions", lambda state, out, now: state.ended_owners.clear()),
)
without(
    "services_start_after_their_owner",
    "A service with `until` can be retried when its owner has finished.",
    (commands, "check_owner", lambda state, workload: None),
)
