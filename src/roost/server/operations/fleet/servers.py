"""Servers: leader and standbys, status and metrics, maintenance, backup."""

import msgspec

from roost import __version__
from roost.core.placement.strategies import STRATEGIES
from roost.core.state.state import State
from roost.model import limits
from roost.model.errors import Conflict, Invalid, NotFound
from roost.model.events import Maintain
from roost.model.spec.names import check_text
from roost.model.spec.placement import between
from roost.model.spec.units import duration_ms
from roost.ports.store import ANYBODY, Snapshot
from roost.schema.nodes import Maintaining, MaintenanceView
from roost.schema.servers import (
    LeaderTransfer,
    LeaderView,
    RevokedView,
    ServersView,
    ServerView,
    StatusView,
    TimingView,
)
from roost.server.engine.recording import records_of
from roost.server.observability import logging
from roost.server.operations.context import Call
from roost.server.pki.revocation import revoke_certificates
from roost.server.views.operators import maintenance_view
from roost.server.views.view_of import view_of

BACKUP_S = 25.0  # of CPU: 100,000 instances take 0.2 s

log = logging.logger("leader")


async def list_servers(call: Call) -> ServersView:
    """All servers: role and revision of each."""
    context = call.context
    engine, peers = context.engine, context.peers
    state = await engine.settled()
    if peers is None or engine.leadership is None:
        alone = ServerView(
            name="server", role="leader" if engine.ready else "unknown", api="", agents="", revision=state.revision,
            now_ms=call.now_ms, version=__version__, failed=engine.failed,
        )  # fmt: skip
        return ServersView(epoch=engine.machine.epoch, items=[alone])
    items = [
        ServerView(
            name=presence.name, role=presence.role or "unknown", api=presence.api, agents=presence.agents,
            revision=presence.revision, now_ms=presence.now_ms, version=presence.version,
            failed="" if presence.role == "standby" else presence.failed,
        )
        for presence in await peers.statuses()
    ]  # fmt: skip
    return ServersView(epoch=engine.machine.epoch, items=items, timing=TimingView(**engine.leadership.timing._asdict()))


async def transfer_leader(call: Call, fields: LeaderTransfer) -> LeaderView:
    """Transfer leadership. Running work is not affected; requests wait until it is done."""
    context, successor = call.context, fields.to
    team = context.engine.leadership
    if team is None or context.peers is None:
        raise Conflict("this server has its store for itself; there is no other server", code="alone")
    standing_by = [identity.name for identity in context.peers.attending.values()]
    if not standing_by:
        raise Conflict("no other server stands by", code="alone")
    if successor and successor not in standing_by:
        raise NotFound(f"no server {successor} stands by; there are {', '.join(sorted(standing_by))}", path="to")
    log.info("leadership is transferred", to=successor or "the first standby", by=call.principal.name)
    await context.hooks.leave()  # so that the next leader sends nothing twice
    context.engine.let_go(successor or ANYBODY)
    return LeaderView(leads=True, name=team.identity.name, api=team.identity.api)


async def revoke_server_certificates(call: Call) -> RevokedView:
    """Revoke the certificates of all servers, because one may have leaked. Running servers issue new ones at once."""
    series = await revoke_certificates(call.engine, call.principal.by)
    log.warning("the certificates of all servers were revoked", series=series, by=call.principal.name)
    return RevokedView(series=series)


async def metrics(call: Call) -> bytes:
    """Counters for Prometheus."""
    return await call.context.metrics.page()


async def status(call: Call) -> StatusView:
    """Version, revision and counts of the server."""
    context, state = call.context, await call.state()
    others = [peer.controller for peer in context.peers.attending.values()] if context.peers is not None else []
    return view_of(
        StatusView,
        await context.census.of(state),
        state.settings,
        version=__version__,
        revision=state.revision,
        ready=context.engine.ready,
        lease_ms=max(state.settings.lease_ms, state.meta.lease_ms),  # it grows with the fleet
        task_restarts=dict(context.engine.tasks.restarts),
        now_ms=call.now_ms,
        strategies=sorted(STRATEGIES),
        agents_connected=context.metrics.perform.connected,
        maintenance=maintenance_view(state, call.redactor.visible),
        history=context.history.standing() if context.history is not None else None,
        controllers=[address for address in (context.controller, *others) if address],
        controllers_tls=context.controller_tls,
    )


async def get_maintenance(call: Call) -> MaintenanceView:
    """Show maintenance: since when and why."""
    return maintenance_view(await call.state(), call.redactor.visible)


async def begin_maintenance(call: Call, fields: Maintaining) -> MaintenanceView:
    """Start maintenance: nothing is placed, moved, updated or lost. What runs and ends is heard of.

    While there is maintenance already, this changes its reason and its end.
    """
    check_text(fields.reason, "reason")
    if not fields.reason.strip():
        raise Invalid("reason", "say what for: pending work shows it")
    for_ms = 0
    if fields.for_ is not None:
        for_ms = duration_ms(fields.for_, "for")
        between(for_ms, 1, limits.DURATION_MS_MAX, "for", "milliseconds")
    await call.ask(lambda number: Maintain(number, True, fields.reason, for_ms))
    return maintenance_view(call.engine.state)


async def end_maintenance(call: Call) -> MaintenanceView:
    """End maintenance: paused work continues. Idempotent."""
    await call.ask(lambda number: Maintain(number, False))
    return maintenance_view(call.engine.state)


async def backup(call: Call) -> bytes:
    """All records, for `roost store backup`: msgpack, secrets encrypted. Another process packs them."""
    call.context.note(call.principal, "backup", "", f"all records as of revision {call.engine.state.revision}")
    return await call.context.questions.ask(_packed, budget_s=BACKUP_S)


def _packed(state: State) -> bytes:
    return msgspec.msgpack.encode(Snapshot(state.revision, records_of(state)))
