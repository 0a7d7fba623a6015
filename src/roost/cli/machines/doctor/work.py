"""Checks of `roost doctor` about work: maintenance, flaky nodes, pools, services, schedules and hooks."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from roost.cli.common.targets import Target
from roost.cli.machines.doctor.command import DoctorCheck, ok, warn
from roost.cli.machines.servers import maintenance_text
from roost.client import Client
from roost.client.errors import ApiError
from roost.schema.nodes import NodeView
from roost.schema.pools import PoolView
from roost.schema.schedules import ScheduleView
from roost.schema.servers import StatusView
from roost.schema.services import ServiceView
from roost.schema.webhooks import HookView

NAMES_SHOWN = 5
NOT_FOR_US = (403, 404, 405)  # our role is too low, or the server is older than this client

T = TypeVar("T")


def look_at_work(client: Client, status: StatusView, nodes: Sequence[NodeView]) -> Iterator[DoctorCheck]:
    if status.maintenance.on:
        then = "`roost maintenance off` ends it"
        yield warn("maintenance", maintenance_text(status.maintenance), then)
    flaky = [node.name for node in nodes if (node.flaky_until_ms or 0) > status.now_ms]
    then = "check the machine: work that runs elsewhere fails there; `roost nodes show NAME`"
    yield from warnings("nodes", [("flaky, and avoided for a while", flaky, then)])
    yield from _pools(_reported(client.pools.list))
    yield from _services(_reported(client.services.list))
    yield from _schedules(_reported(client.schedules.list))
    yield from _hooks(_reported(client.webhooks.list))


def _pools(pools: Sequence[PoolView]) -> Iterator[DoctorCheck]:
    for pool in pools:
        why = f": {pool.reason}" if pool.reason else ""
        if pool.status == "failed":
            then = f"`roost pools mark {pool.name} ready` when it works again"
            if pool.failed_by == "silence":
                then = "it is ready again when one of its nodes connects: check its agents and their network"
            yield warn("pools", f"{pool.name} has failed{why}", then)
        elif pool.status == "draining":
            then = f"`roost pools mark {pool.name} ready` to use it again"
            yield warn("pools", f"{pool.name} is draining{why}", then)
    well = sum(pool.status == "ready" for pool in pools)
    if pools and well == len(pools):
        yield ok("pools", f"{_all(well)} ready")


def _services(services: Sequence[ServiceView]) -> Iterator[DoctorCheck]:
    looping = [_name(service) for service in services if service.looping]
    failed = [_name(service) for service in services if service.rollout == "failed"]
    waiting = [_name(service) for service in services if service.rollout == "waiting"]
    yield from warnings("services", (
        ("in a crash loop", looping, "`roost why NAME` and `roost logs NAME` show why they end"),
        ("the change to a new version failed", failed, "`roost rollback NAME`, or apply a better one"),
        ("canaries wait for promotion", waiting, "`roost promote NAME`, or `roost rollback NAME`"),
    ))  # fmt: skip
    if services and not looping + failed + waiting:
        ready = sum(service.ready >= service.count for service in services)
        yield ok("services", f"{ready:,} of {len(services):,} have all their replicas ready")


def _schedules(schedules: Sequence[ScheduleView]) -> Iterator[DoctorCheck]:
    live = [schedule for schedule in schedules if not schedule.ended]
    behind = [schedule for schedule in live if schedule.message]
    for schedule in behind[:NAMES_SHOWN]:
        then = "`roost schedules`; its runs take too long, or the server was away: see `overlap` and `catch_up`"
        yield warn("schedules", f"{_name(schedule)}: {schedule.message}", then)
    more = [_name(schedule) for schedule in behind[NAMES_SHOWN:]]
    yield from warnings("schedules", [("also behind", more, "`roost schedules`")])
    if live and not behind:
        yield ok("schedules", f"{_all(len(live))} on time")


def _hooks(hooks: Sequence[HookView]) -> Iterator[DoctorCheck]:
    live = [hook for hook in hooks if hook.enabled]
    dead = [hook for hook in live if hook.last_error and hook.waiting]
    for hook in dead[:NAMES_SHOWN]:
        message = f"{_hook_name(hook)} is not taken: {hook.last_error}; {hook.waiting:,} events wait"
        yield warn("hooks", message, f"check its receiver, then `roost hooks test {_hook_name(hook)}`")
    missed = [_hook_name(hook) for hook in live if hook.given_up or hook.dropped or hook.missing]
    then = "`roost hooks` shows how many; the receiver should list the current state again"
    yield from warnings("hooks", (
        ("also not taken", [_hook_name(hook) for hook in dead[NAMES_SHOWN:]], "`roost hooks`"),
        ("events were given up or dropped", missed, then),
    ))  # fmt: skip
    if live and not dead and not missed:
        yield ok("hooks", f"{_all(len(live))} taken")


def warnings(about: str, table: Iterable[tuple[str, Sequence[str], str]]) -> Iterator[DoctorCheck]:
    """A warning for each line of the table that has names: what is wrong, the names, and what to do."""
    for what, names, then in table:
        if names:
            more = f" and {len(names) - NAMES_SHOWN:,} more" if len(names) > NAMES_SHOWN else ""
            yield warn(about, f"{what}: {', '.join(names[:NAMES_SHOWN])}{more}", then)


def _reported(ask: Callable[[], list[T]]) -> list[T]:
    """The answer of the server; nothing if our role does not allow it."""
    try:
        return ask()
    except ApiError as error:
        if error.status in NOT_FOR_US:
            return []
        raise


def _name(of: ServiceView | ScheduleView) -> str:
    return str(Target(of.project, of.name))


def _hook_name(hook: HookView) -> str:
    return hook.name if hook.project == "*" else f"{hook.project}/{hook.name}"


def _all(number: int) -> str:
    return f"all {number:,} are" if number > 1 else "the only one is"
