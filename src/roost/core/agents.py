"""What agents say: hello, reports, silence. Words of an older session or attempt change nothing."""

from roost.core.adopt import adopt, policy_of
from roost.core.ahead import learn
from roost.core.claim import Claim, claim
from roost.core.effects import Step
from roost.core.lose import lose_node
from roost.core.move import contact_of, move, settle_node, tell
from roost.core.operate import frozen
from roost.core.pools import node_came
from roost.core.retry import ended, lost, requeue
from roost.core.state import Contact, State
from roost.model.errors import Conflict, NoService
from roost.model.events import Heard, Joined, Parted, Reported
from roost.model.frames import Drop, Hello, Report, Run
from roost.model.instance import Instance
from roost.model.limits import TEXT_LENGTH_MAX
from roost.model.node import Node

LIFE_DIGITS_MAX = 18


def joined(state: State, out: Step, event: Joined, now: int) -> None:
    """An agent said hello: a new node, a known one that is back, or a stranger with a name that is taken."""
    hello = event.hello
    node = state.nodes.get(hello.node)
    if node is not None:
        refusal = _refusal(state, node, hello, now)
        if refusal:
            out.reply(event.request, Conflict(refusal, code="already_exists", path="node"))
            return
        if _is_stale(node, hello):
            words = f"node {node.name} has said hello after this one, which got lost on its way; say it again"
            out.reply(event.request, NoService(words, code="stale_hello"))
            return
    anew = node is not None and node.identity != hello.identity  # nothing that an earlier life ran is left
    if node is None:
        node = Node(hello.node, hello.identity, hello.facts, status="lost", joined_ms=now)
        state.nodes[node.name] = node
        state.held[node.name] = {}
        state.contacts[node.name] = Contact(0)
    if node.facts != hello.facts or len(state.fleet) == 0 or state.fleet.row(node.name) < 0:
        state.join_fleet(node.name, hello.facts)
    node.facts, node.identity, node.hello_ms = hello.facts, hello.identity, hello.sent_ms
    node.session = state.next_serial()
    _reconnect(state, node, now)
    _compare(state, out, node, hello, now, anew=anew)
    settle_node(state, out, node, "said hello", now)
    state.unsettled.update(dict.fromkeys(state.restless))  # what was out of touch is known again
    node_came(state, out, node, now)
    state.touch_node(node)
    out.whole.add(node.name)
    out.reply(event.request, node.session)


def reported(state: State, out: Step, event: Reported, now: int) -> None:
    """Reports move attempts forward; whatever is late, repeated or foreign is ignored and told."""
    contact = contact_of(state, event.node, event.session)
    if contact is None:
        out.ignored.append(f"{event.node}: a report of an old session")
        return
    for report in event.reports:
        instance = state.held[event.node].get(report.token)
        if instance is not None:
            apply_report(state, out, instance, report, now)
        else:
            _ghost_report(state, out, event.node, contact, report)
    out.acknowledged[event.node] = event.sequence
    if event.lacking:
        out.whole.add(event.node)


def parted(state: State, out: Step, event: Parted, now: int) -> None:
    """The stream broke: no new work goes there, and what may run twice starts elsewhere at once."""
    contact = contact_of(state, event.node, event.session)
    if contact is None:
        return
    node = state.nodes[event.node]
    if event.leaving and not state.held[node.name]:
        lose_node(state, out, node, "said goodbye", now)
        return
    if not contact.connected:
        return
    contact.connected = False
    settle_node(state, out, node, "is leaving" if event.leaving else "its stream broke", now)
    if frozen(state):
        return
    for token in sorted(state.held[node.name], reverse=True):  # nobody steps up
        instance = state.held[node.name][token]
        policy = state.spec_of(instance).policy
        goes = instance.state != "stopping" or bool(instance.behind)  # who stops has room until it is confirmed
        if not policy.exclusive and policy.when_lost != "keep" and goes:
            lost(state, out, instance, f"the stream of node {node.name} broke", now)


def heard(state: State, out: Step, event: Heard, now: int) -> None:
    """Signs of life push the end of a lease back. Nothing of this is stored."""
    lease = state.settings.lease_ms + state.settings.lease_margin_ms
    for name, session, at_ms in event.beats:
        contact = contact_of(state, name, session)
        if contact is not None:
            contact.lease_until_ms = max(contact.lease_until_ms, at_ms + lease)
            if contact.silent:
                contact.silent = False
                settle_node(state, out, state.nodes[name], "heard again", now)
                node_came(state, out, state.nodes[name], now)
    for name, usage in event.usage:
        if name in state.contacts:
            state.contacts[name].usage = usage
            state.fleet.measure(name, usage, now)


def apply_report(state: State, out: Step, instance: Instance, report: Report, now: int) -> None:
    """One report on an attempt that lives. Agents send the latest state only, so states may be skipped."""
    if report.state == "starting":
        if instance.state == "placed":
            move(state, out, instance, "starting", "taken up by the agent", now)
        return
    since = instance.since_ms if instance.state in ("placed", "starting") else 0
    began = min(now, max(now - report.started_ago_ms, since))
    if report.state == "running":
        turned = now  # one that was not ready, and now is
        if instance.state in ("placed", "starting"):
            instance.started_ms = turned = began
            move(state, out, instance, "running", "started", began)
        if report.step != instance.step:
            instance.step = report.step
            state.touch_instance(instance)
        _told_ready(state, instance, report, turned)
        return
    if report.state != "ended":
        out.ignored.append(f"{instance.node}: attempt {report.token} cannot be {report.state!r:.40}")
        return
    if instance.state in ("placed", "starting") and report.cause in ("exited", "timed_out"):
        instance.started_ms = began
        move(state, out, instance, "running", "started", began)
    instance.exit_code, instance.signal, instance.step = report.code, report.signal, report.step
    ended_ms = min(now, max(now - report.ended_ago_ms, instance.started_ms))
    if report.cause == "exited":
        learn(state, state.spec_of(instance), report.started_ago_ms - report.ended_ago_ms)
    _end(state, out, instance, report, now)
    if instance.finished_ms:
        instance.finished_ms = ended_ms


def _told_ready(state: State, instance: Instance, report: Report, turned: int) -> None:
    """Whether an instance of a service is ready to be used, as its health check says."""
    if instance.state != "running" or state.spec_of(instance).policy.kind != "service":
        return
    since = (instance.serving_ms or turned) if report.ready else 0
    sick = "" if report.ready else report.error[:TEXT_LENGTH_MAX]
    if (since, sick) != (instance.serving_ms, instance.sick):
        instance.serving_ms, instance.sick = since, sick
        state.touch_instance(instance)
        state.tell_dependants(instance.workload, instance.index)
        if instance.workload in state.restless:
            state.unsettled[instance.workload] = None


def _end(state: State, out: Step, instance: Instance, report: Report, now: int) -> None:
    cause = ending_words(report)
    if report.cause == "lease":
        lost(state, out, instance, cause, now)
    elif report.cause == "stopped" and instance.state != "stopping":
        lost(state, out, instance, f"node {instance.node} stopped it", now)
    elif instance.state == "stopping" and not instance.moving:
        move(state, out, instance, "cancelled", instance.cause, now)
    elif report.cause == "stopped" or (report.cause == "unhealthy" and instance.state == "stopping"):
        requeue(state, out, instance, f"moved: {instance.cause}", now)
    elif report.cause == "timed_out":
        ended(state, out, instance, "timed_out", cause, now)
    elif report.cause == "exited" and report.code == 0:
        ended(state, out, instance, "succeeded", cause, now)
    else:
        ended(state, out, instance, "failed", cause, now)


def ending_words(report: Report) -> str:
    """How an attempt ended, in words."""
    where = f"step {report.step + 1}: " if report.step else ""
    if report.cause == "timed_out":
        return f"{where}ran past its timeout"
    if report.cause == "lease":
        return "the lease of its node ended"
    if report.cause == "unhealthy":
        return f"{where}unhealthy: {report.error}"
    if report.cause == "error":
        return f"{where}{report.error or 'could not be started'}"
    if report.signal is not None:
        return f"{where}ended by signal {report.signal}" + (f" ({report.error})" if report.error else "")
    return f"{where}exit code {report.code}"


def _refusal(state: State, node: Node, hello: Hello, now: int) -> str:
    """A name belongs to the machine that has it as long as that machine may be running what must not run twice."""
    if _machine(node.identity) == _machine(hello.identity):
        return ""
    contact = state.contacts[node.name]
    if contact.connected:
        return f"a node named {node.name} is connected; give this agent another --name"
    if node.status != "lost" and state.held[node.name]:
        left = max(0, contact.lease_until_ms - now)
        return f"the last node named {node.name} may still be running work; its lease ends in {left} ms"
    for instance in state.held[node.name].values():
        if state.spec_of(instance).policy.exclusive:  # kept there, and no lease will ever end it
            return f"the last node named {node.name} may still be running {instance.key}; cancel that first"
    return ""


def _is_stale(node: Node, hello: Hello) -> bool:
    """A hello that was overtaken by a later one knows nothing of what the node was told since.

    Lives of a machine are counted; within one, its clock tells which hello came first.
    """
    if _machine(node.identity) != _machine(hello.identity):
        return False
    return (_life(hello.identity), hello.sent_ms) < (_life(node.identity), node.hello_ms)


def _machine(identity: str) -> str:
    return identity.partition("/")[0]


def _life(identity: str) -> int:
    number = identity.partition("/")[2]
    return int(number) if number.isdecimal() and len(number) <= LIFE_DIGITS_MAX else 0


def _reconnect(state: State, node: Node, now: int) -> None:
    contact = state.contacts[node.name]
    for held in contact.ghosts.values():
        state.fleet.take(node.name, held, -1)
    lease = now + state.settings.lease_ms + state.settings.lease_margin_ms
    # It may hold a longer lease of an earlier server, but not one that was given after this hello: no grace is needed.
    longest = now + state.meta.lease_ms + state.settings.lease_margin_ms
    fresh = state.contacts[node.name] = Contact(max(lease, min(contact.lease_until_ms, longest)))
    fresh.connected = True
    fresh.usage = contact.usage
    state.watch_lease(node.name)


def _compare(state: State, out: Step, node: Node, hello: Hello, now: int, *, anew: bool) -> None:
    """What the node says it runs against what it should run."""
    told = {run.token: (run, report) for run, report in hello.runs}
    for token in sorted(state.held[node.name]):
        instance = state.held[node.name][token]
        if token in told and not anew:
            apply_report(state, out, instance, told[token][1], now)
        elif anew or instance.state != "placed":
            lost(state, out, instance, f"node {node.name} came back without it", now)
    shared = {run.after for token, (run, report) in told.items() if _waits(report) and token in state.held[node.name]}
    for token, (run, report) in told.items():
        if token in state.held[node.name]:
            continue
        if state.settings.adopts and token < state.meta.born and adopt(state, node, run, report, now):
            instance = state.held[node.name][token]
            tell(instance, instance.state, "taken over from its agent", now, state.revision + 1)
            apply_report(state, out, instance, report, now)
        elif report.state != "ended":
            before = told.get(run.after)
            is_behind = before is not None and _waits(report) and before[1].state != "ended"
            _haunt(state, node, run, has_room=token not in shared and not is_behind)


def _waits(report: Report) -> bool:
    return report.state == "starting"


def _haunt(state: State, node: Node, run: Run, *, has_room: bool) -> None:
    """An attempt nobody waits for takes room until its agent has stopped it, unless it shares that of another."""
    policy = policy_of(run) if has_room else None
    project = run.workload.partition("/")[0]
    held = claim(project, run.workload, policy, run.devices, run.ports) if policy else Claim()
    state.contacts[node.name].ghosts[run.token] = held
    state.fleet.take(node.name, held)


def _ghost_report(state: State, out: Step, name: str, contact: Contact, report: Report) -> None:
    held = contact.ghosts.get(report.token)
    if held is None:
        out.ignored.append(f"{name}: a report of attempt {report.token}, which is not its own any more")
    elif report.state == "ended":
        del contact.ghosts[report.token]
        state.fleet.take(name, held, -1)
        state.unsettled.update(dict.fromkeys(state.restless))  # somebody may have waited to be sure of that
    out.order(name, Drop(report.token))
