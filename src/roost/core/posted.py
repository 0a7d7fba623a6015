"""A result that somebody else knows: an attempt ends as if its agent had said so, and its agent is told to drop it.

What may still run there takes its room until the agent has stopped it. Another attempt of what must not run twice waits
for as long as the old one can live at most: the agent stops it within its grace, or its lease ends.
"""

from roost.core.claim import Claim, claim
from roost.core.effects import Step
from roost.core.move import move
from roost.core.retry import ended
from roost.core.state import State
from roost.model.errors import Conflict, NotFound
from roost.model.events import Posted
from roost.model.instance import Instance


def posted(state: State, out: Step, event: Posted, now: int) -> None:
    """Somebody says how an attempt ended. It has to know the token of the attempt that runs."""
    key = f"{event.workload}.{event.index}"
    instance = state.instances.get(key)
    if instance is None:
        out.reply(event.request, NotFound(f"nothing has run as {key}"))
    elif instance.token != event.token:
        words = f"{key} is at attempt {instance.attempt}, whose token is another one: nothing was changed"
        out.reply(event.request, Conflict(words, code="stale_token", path="token"))
    elif instance.state not in ("starting", "running", "stopping") or instance.behind:
        words = f"{key} is {instance.state}: only what runs can get a result"
        out.reply(event.request, Conflict(words, code="not_running", path="token"))
    else:
        _end(state, out, instance, event, now)
        out.reply(event.request, event.workload)


def _end(state: State, out: Step, instance: Instance, event: Posted, now: int) -> None:
    spec, node, token = state.spec_of(instance), instance.node, instance.token
    project = event.workload.partition("/")[0]
    held = Claim()  # whoever stands behind it gets its room, and begins there once it has ended
    if token not in state.followers:
        held = claim(project, event.workload, spec.policy, instance.devices, instance.ports)
    if instance.state == "starting":
        instance.started_ms = now
        move(state, out, instance, "running", "started", now)
    instance.exit_code, instance.signal = event.code, None
    words = f"exit code {event.code}, as was posted" + (f": {event.cause}" if event.cause else "")
    if instance.state == "stopping" and not instance.moving:
        move(state, out, instance, "cancelled", instance.cause, now)
    else:
        lease_ms = state.settings.lease_ms + state.settings.lease_margin_ms
        lives_ms = spec.policy.grace_ms + max(lease_ms, state.contacts[node].lease_until_ms - now)
        ending = "failed" if event.code else "succeeded"
        ended(state, out, instance, ending, words, now, lives_ms if spec.policy.exclusive else 0)
    state.contacts[node].ghosts[token] = held
    state.fleet.take(node, held)
