"""Registrations, reports and heartbeats of agents. Those of an older session or attempt change nothing."""

from roost.core.lifecycle.adopt import adopt, policy_of
from roost.core.lifecycle.power import power_reported
from roost.core.lifecycle.restarts import attempts_on, ended, lose_node, lost, release_orphans, requeue
from roost.core.nodes.flaky import record_end
from roost.core.nodes.pools import node_came
from roost.core.queue.prefill import record_run_length
from roost.core.state.allocation import Allocation, make_allocation
from roost.core.state.files import project_full, set_outputs
from roost.core.state.liveness import NodeLiveness
from roost.core.state.outcome import IgnoredBecause, IgnoredReport, Paced, Step
from roost.core.state.results import set_result
from roost.core.state.state import State, in_maintenance
from roost.core.state.usage import usage_of
from roost.core.state.weight import REPORT_UNITS
from roost.core.transitions import liveness_of, move, note_instance, refresh_status, restate
from roost.model import events as happened
from roost.model.errors import Conflict, NoService
from roost.model.keys import split_workload_key
from roost.model.limits import OUTPUT_GAPS_MAX, TEXT_LENGTH_MAX
from roost.model.protocol import Drop, Hello, Report, Run
from roost.model.reasons import attempts
from roost.model.reasons.nodes import HeartbeatsResumed, NodeLeaving, NodeLeft, NodeRegistered, NodeStreamClosed
from roost.model.reasons.reason import MovedToQueue, Reason
from roost.model.reasons.subjects import HealthEvidence
from roost.model.records.files import OutputGap, OutputProblem, Outputs
from roost.model.records.instance import Instance
from roost.model.records.node import Node
from roost.model.spec.document import health_check_of, outputs_in
from roost.model.states import ABSENT, AttemptState, EndCause, InstanceState, NodeStatus, WhenLost, WorkloadKind

INCARNATION_DIGITS_MAX = 18


def node_connected(state: State, out: Step, event: happened.NodeConnected, now: int) -> Paced[None]:
    """An agent registered: a new node, a known one that is back, or another machine with a name in use."""
    hello = event.hello
    node = state.nodes.get(hello.node)
    if node is not None:
        refusal = _refusal(state, node, hello, now)
        if refusal:
            raise Conflict(refusal, code="already_exists", path="node")
        if _is_stale(node, hello):
            message = f"stale registration of node {node.name}: a newer one was received; reconnect"
            raise NoService(message, code="stale_hello")
    anew = node is not None and node.identity != hello.identity  # nothing of an earlier incarnation runs
    if node is None:
        node = Node(hello.node, hello.identity, hello.facts, status=NodeStatus.LOST, joined_ms=now)
        state.nodes[node.name] = node
        state.allocated[node.name] = {}
        state.liveness[node.name] = NodeLiveness(0)
    if node.facts != hello.facts or len(state.fleet) == 0 or state.fleet.row(node.name) < 0:
        state.join_fleet(node.name, hello.facts)
    state.losing.pop(node.name, None)  # the agent says what became of each attempt
    node.facts, node.identity, node.hello_ms = hello.facts, hello.identity, hello.sent_ms
    node.session = state.next_serial()
    _reconnect(state, node, now)
    yield from _compare(state, out, node, event, now, anew=anew)
    refresh_status(state, out, node, NodeRegistered(), now)
    state.dirty_services.update(dict.fromkeys(state.reconciling))  # its replicas are known again
    node_came(state, out, node, now)
    state.touch_node(node)
    out.whole.add(node.name)
    out.reply(event.request, node.session)


def reports_received(state: State, out: Step, event: happened.ReportsReceived, now: int) -> Paced[None]:
    """Reports move attempts forward; late, repeated and foreign ones are ignored and listed."""
    contact = liveness_of(state, event.node, event.session)
    if contact is None:
        out.ignored.append(IgnoredReport(event.node, IgnoredBecause.OLD_SESSION))
        return
    for report in event.reports:
        instance = state.allocated[event.node].get(report.token)
        if instance is not None:
            apply_report(state, out, instance, report, now, event.received_ms)
        else:
            _orphan_report(state, out, event.node, contact, report)
        yield REPORT_UNITS
    out.acknowledged[event.node] = event.sequence
    if event.delta_missing:
        out.whole.add(event.node)


def node_disconnected(state: State, out: Step, event: happened.NodeDisconnected, now: int) -> None:
    """The stream broke: no new work goes there, and attempts that may run twice start elsewhere at once."""
    contact = liveness_of(state, event.node, event.session)
    if contact is None:
        return
    node = state.nodes[event.node]
    if event.leaving and not state.allocated[node.name]:
        lose_node(state, out, node, NodeLeft(), now)
        return
    if not contact.connected:
        return
    contact.connected = False
    refresh_status(state, out, node, NodeLeaving() if event.leaving else NodeStreamClosed(), now)
    if in_maintenance(state):
        return
    for instance in attempts_on(state, node.name, youngest_first=True):
        policy = state.spec_of(instance).policy
        # A stopping attempt has its allocation until the stop is confirmed.
        goes = instance.state != InstanceState.STOPPING or bool(instance.prefilled_behind)
        if not policy.fenced and policy.when_lost != WhenLost.PIN and goes:
            lost(state, out, instance, attempts.StreamClosed(node.name), now)


def heartbeats_received(state: State, out: Step, event: happened.HeartbeatsReceived, now: int) -> None:
    """Heartbeats extend leases. Nothing of this is stored."""
    lease = state.lease_ms + state.settings.lease_margin_ms
    for name, session, at_ms in event.heartbeats:
        contact = liveness_of(state, name, session)
        if contact is not None:
            contact.lease_until_ms = max(contact.lease_until_ms, at_ms + lease)
            if contact.silent:
                contact.silent = False
                refresh_status(state, out, state.nodes[name], HeartbeatsResumed(), now)
                node_came(state, out, state.nodes[name], now)
    for name, usage in event.usage:
        if name in state.liveness:
            state.liveness[name].usage = usage
            state.fleet.measure(name, usage, now)


def reading_paused(state: State, out: Step, event: happened.ReadingPaused, now: int) -> None:
    """Heartbeats of that time are still to be read: every lease is longer by it. Lost nodes stay lost."""
    for name, contact in state.liveness.items():
        if state.nodes[name].status not in ABSENT:
            contact.lease_until_ms += event.for_ms


def apply_report(
    state: State, out: Step, instance: Instance, report: Report, now: int, received_ms: int = 0
) -> None:  # fmt: skip
    """One report on a live attempt. Agents send the latest state only, so states may be skipped.

    Its ages are of the moment when it was received: a store that was away meanwhile does not make a run longer.
    """
    received_ms = received_ms or now
    if report.image and report.image != instance.image:
        instance.image = report.image
        state.touch_instance(instance)
    if report.state == AttemptState.STARTING:
        if instance.state == InstanceState.PLACED:
            _accept(state, out, instance, report, now)
        return
    is_new = instance.state in (InstanceState.PLACED, InstanceState.STARTING)
    since = instance.since_ms if is_new else 0
    began = min(now, max(received_ms - report.started_ago_ms, since))
    if report.state == AttemptState.RUNNING:
        turned = now  # one that was not ready, and now is
        if is_new:
            turned = began
            _begin(state, out, instance, report, began)
        elif isinstance(instance.reason, attempts.PinnedToLostNode):
            restate(state, instance, attempts.NodeReturned(instance.node), now)
        if report.step != instance.step:
            instance.step = report.step
            state.touch_instance(instance)
        _update_readiness(state, instance, report, turned)
        power_reported(state, instance, report, now)
        return
    if report.state != AttemptState.ENDED:
        out.ignored.append(IgnoredReport(instance.node, IgnoredBecause.UNKNOWN_STATE, report.token, report.state))
        return
    if is_new and report.cause in (EndCause.EXITED, EndCause.TIMED_OUT):
        _begin(state, out, instance, report, began)
    instance.exit_code, instance.signal, instance.step = report.code, report.signal, report.step
    instance.log_size, instance.stderr_size = report.log_size, report.stderr_size
    instance.usage = usage_of(instance, report)
    if report.result is not None:  # of a file, which is read at the end and so replaces what was posted before
        set_result(state, instance, report.result)
    if report.outputs is not None:
        set_outputs(state, instance, _within_quota(state, instance, report.outputs))
    ended_ms = min(now, max(received_ms - report.ended_ago_ms, instance.started_ms))
    if report.cause == EndCause.EXITED:
        record_run_length(state, state.spec_of(instance), report.started_ago_ms - report.ended_ago_ms)
    _end(state, out, instance, report, now)
    if instance.finished_ms:
        instance.finished_ms = ended_ms


def _accept(state: State, out: Step, instance: Instance, report: Report, at_ms: int) -> None:
    reason = attempts.ImagePulled(report.pulled_ms) if report.pulled_ms else attempts.ACCEPTED_BY_AGENT
    move(state, out, instance, InstanceState.STARTING, reason, at_ms)


def _begin(state: State, out: Step, instance: Instance, report: Report, began: int) -> None:
    if report.pulled_ms and instance.state == InstanceState.PLACED:
        _accept(state, out, instance, report, began)
    instance.started_ms = began
    move(state, out, instance, InstanceState.RUNNING, attempts.PROCESS_STARTED, began)


def _within_quota(state: State, instance: Instance, outputs: Outputs) -> Outputs:
    """Outputs that are too much for the file quota of the project are not kept, and say so."""
    spec = state.spec_of(instance)
    if outputs.files is None or project_full(state, spec.project, [outputs.files]) is None:
        return outputs
    required = any(block.required for block in outputs_in(spec.document))
    full = OutputGap(OutputProblem.PROJECT_FULL, required=required)
    return Outputs(None, (full, *outputs.gaps[: OUTPUT_GAPS_MAX - 1]))


def _update_readiness(state: State, instance: Instance, report: Report, turned: int) -> None:
    if instance.state != InstanceState.RUNNING or state.spec_of(instance).policy.kind != WorkloadKind.SERVICE:
        return
    since = (instance.ready_since_ms or turned) if report.ready else 0
    failure = _health_failure(state, instance, report) if report.error and not report.ready else None
    if (since, failure) != (instance.ready_since_ms, instance.health_failure):
        instance.ready_since_ms, instance.health_failure = since, failure
        state.touch_instance(instance)
        state.notify_dependents(instance.workload, instance.index)
        if instance.workload in state.reconciling:
            state.dirty_services[instance.workload] = None


def _end(state: State, out: Step, instance: Instance, report: Report, now: int) -> None:
    reason = ending_reason(state, instance, report)
    is_stopping = instance.state == InstanceState.STOPPING
    if report.cause == EndCause.LEASE:
        lost(state, out, instance, reason, now)
    elif report.cause == EndCause.STOPPED and not is_stopping:
        lost(state, out, instance, attempts.StoppedByNode(instance.node), now)
    elif is_stopping and not instance.requeue_after_stop:
        assert instance.reason is not None, f"{instance.key} is being stopped for no reason"
        move(state, out, instance, InstanceState.CANCELLED, instance.reason, now)
    elif report.cause == EndCause.STOPPED or (report.cause == EndCause.UNHEALTHY and is_stopping):
        assert instance.reason is not None, f"{instance.key} is being moved for no reason"
        requeue(state, out, instance, MovedToQueue(instance.reason), now)
    else:
        ending = InstanceState.FAILED
        if report.cause == EndCause.TIMED_OUT:
            ending = InstanceState.TIMED_OUT
        elif report.cause == EndCause.EXITED and report.code == 0:
            missing = attempts.outputs_missing(instance.outputs) if instance.outputs is not None else None
            ending, reason = (InstanceState.FAILED, missing) if missing else (InstanceState.SUCCEEDED, reason)
        record_end(state, instance, ending, reason, now)
        ended(state, out, instance, ending, reason, now)


def ending_reason(state: State, instance: Instance, report: Report) -> Reason:
    match report.cause:
        case EndCause.TIMED_OUT:
            return attempts.TimeoutExceeded(state.spec_of(instance).policy.timeout_ms, report.step)
        case EndCause.LEASE:
            return attempts.LeaseExpired(instance.node)
        case EndCause.UNHEALTHY:
            return attempts.HealthCheckFailed(_health_failure(state, instance, report), report.step)
        case EndCause.ERROR if report.inputs_failed is not None:
            return attempts.InputsFailed(report.inputs_failed)
        case EndCause.ERROR:
            return attempts.StartFailed(report.error, report.step)
        case _ if report.signal is not None:
            return attempts.KilledBySignal(report.signal, report.step, report.error)
        case _:
            return attempts.ExitCode(report.code or 0, report.step)


def _health_failure(state: State, instance: Instance, report: Report) -> HealthEvidence:
    check, target = health_check_of(state.spec_of(instance).document)
    return HealthEvidence(check, target, report.error[:TEXT_LENGTH_MAX])


def _refusal(state: State, node: Node, hello: Hello, now: int) -> str:
    """A name belongs to its machine as long as that machine may be running fenced work."""
    if _life_of(node.identity)[0] == _life_of(hello.identity)[0]:
        return ""
    contact = state.liveness[node.name]
    if contact.connected:
        return f"a node named {node.name} is connected; give this agent another --name"
    if node.status not in ABSENT and state.allocated[node.name]:
        left = max(0, contact.lease_until_ms - now)
        return f"the last node named {node.name} may still be running work; its lease ends in {left} ms"
    for instance in state.allocated[node.name].values():
        if state.spec_of(instance).policy.fenced:  # kept there, and no lease will ever end it
            return f"the last node named {node.name} may still be running {instance.key}; cancel that first"
    return ""


def _is_stale(node: Node, hello: Hello) -> bool:
    """A registration that a later one overtook knows nothing of the orders since.

    Incarnations of a machine are counted; within one, its clock tells which registration came first.
    """
    (machine, life), (known_machine, known_life) = _life_of(hello.identity), _life_of(node.identity)
    return machine == known_machine and (life, hello.sent_ms) < (known_life, node.hello_ms)


def _life_of(identity: str) -> tuple[str, int]:
    """The machine, and its incarnation."""
    machine, _, number = identity.partition("/")
    return machine, int(number) if number.isdecimal() and len(number) <= INCARNATION_DIGITS_MAX else 0


def _reconnect(state: State, node: Node, now: int) -> None:
    contact = state.liveness[node.name]
    if node.name in state.awaited:
        state.awaited.remove(node.name)
        state.returned_ms = now
    release_orphans(state, node.name)
    lease = now + state.lease_ms + state.settings.lease_margin_ms
    # It may hold a longer lease of an earlier server, but not one that was given after this hello: no grace is needed.
    longest = now + state.meta.lease_ms + state.settings.lease_margin_ms
    fresh = state.liveness[node.name] = NodeLiveness(max(lease, min(contact.lease_until_ms, longest)))
    fresh.connected = True
    fresh.usage = contact.usage
    state.watch_lease(node.name)


def _compare(
    state: State, out: Step, node: Node, event: happened.NodeConnected, now: int, *, anew: bool
) -> Paced[None]:
    answer = {run.token: (run, report) for run, report in event.hello.runs}
    for instance in attempts_on(state, node.name):
        if instance.token in answer and not anew:
            apply_report(state, out, instance, answer[instance.token][1], now, event.received_ms)
        elif anew or instance.state != InstanceState.PLACED:
            lost(state, out, instance, attempts.MissingOnNode(node.name), now)
        yield REPORT_UNITS
    held = state.allocated[node.name]
    starting = {token for token, (_, report) in answer.items() if report.state == AttemptState.STARTING}
    shared = {run.after for token, (run, _) in answer.items() if token in starting and token in held}
    for token, (run, report) in answer.items():
        if token in held:
            continue
        if state.settings.adopts and token < state.meta.first_serial and adopt(state, node, run, report, now):
            instance = held[token]
            note_instance(state, instance, InstanceState.QUEUED, attempts.AdoptedFromAgent(), now)
            apply_report(state, out, instance, report, now, event.received_ms)
        elif report.state != AttemptState.ENDED:
            before = answer.get(run.after)
            is_behind = before is not None and token in starting and before[1].state != AttemptState.ENDED
            has_process = not report.ended_ago_ms  # else only its outputs are being collected
            _track_orphan(state, node, run, has_room=token not in shared and not is_behind and has_process)
        yield REPORT_UNITS


def _track_orphan(state: State, node: Node, run: Run, *, has_room: bool) -> None:
    """An orphan keeps its allocation until its agent has stopped it, unless it was prefilled behind another."""
    policy = policy_of(run) if has_room else None
    project, _ = split_workload_key(run.workload)
    allocation = make_allocation(project, run.workload, policy, run.devices, run.ports) if policy else Allocation()
    state.liveness[node.name].orphans[run.token] = allocation
    state.fleet.take(node.name, allocation)


def _orphan_report(state: State, out: Step, name: str, contact: NodeLiveness, report: Report) -> None:
    allocation = contact.orphans.get(report.token)
    if allocation is None:
        out.ignored.append(IgnoredReport(name, IgnoredBecause.NOT_ITS_ATTEMPT, report.token))
    elif report.state == AttemptState.ENDED:
        del contact.orphans[report.token]
        behind = min((token for token, held in contact.orphans.items() if held == Allocation()), default=None)
        if behind is not None:  # it may have begun in this room before its agent could stop it
            contact.orphans[behind], allocation = allocation, Allocation()
        state.fleet.take(name, allocation, -1)
        state.dirty_services.update(dict.fromkeys(state.reconciling))  # a rollout may wait for that
    out.order(name, Drop(report.token))
