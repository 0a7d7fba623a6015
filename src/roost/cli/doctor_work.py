"""What `roost doctor` says of the work itself: what is held up, pools and nodes that are not well, services, hooks."""

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from roost.cli.doctor import Line
from roost.cli.maintenance import words as maintenance_words
from roost.cli.targets import Target
from roost.client import Client, types
from roost.client.errors import ApiError
from roost.client.hooks import Hook
from roost.client.schedules import Schedule
from roost.client.services import Service
from roost.client.setting_types import Pool

NAMES_SHOWN = 5
NOT_FOR_US = (403, 404, 405)  # our role is too low, or the server is older than this client

T = TypeVar("T")


def look_at_work(client: Client, status: types.Status, nodes: Sequence[types.Node]) -> Iterator[Line]:
    """Everything that somebody should know of and that nobody may have told."""
    if status.maintenance.on:
        then = "`roost maintenance off` lets everything take its course again"
        yield Line("warn", "held up", maintenance_words(status.maintenance), then)
    yield from _flaky(nodes, status.now_ms)
    yield from _pools(_told(client.pools))
    yield from _services(_told(client.services))
    yield from _schedules(_told(client.schedules))
    yield from _hooks(_told(client.hooks))


def _flaky(nodes: Sequence[types.Node], now_ms: int) -> Iterator[Line]:
    found = [node.name for node in nodes if (node.flaky_until_ms or 0) > now_ms]
    if found:
        then = "look at the machine: work fails there that runs elsewhere; `roost nodes show NAME`"
        yield Line("warn", "nodes", f"flaky, and avoided for a while: {names_shown(found)}", then)


def _pools(pools: Sequence[Pool]) -> Iterator[Line]:
    for pool in pools:
        why = f": {pool.reason}" if pool.reason else ""
        if pool.status == "failed":
            then = f"`roost pools ready {pool.name}` once it is well"
            if pool.failed_by == "silence":
                then = "it is well again when a node of it is back: look at its agents and their network"
            yield Line("warn", "pools", f"{pool.name} has failed{why}", then)
        elif pool.status == "draining":
            then = f"`roost pools ready {pool.name}` when it is to be used again"
            yield Line("warn", "pools", f"{pool.name} is draining{why}", then)
    well = sum(pool.status == "ready" for pool in pools)
    if pools and well == len(pools):
        yield Line("ok", "pools", f"{_all(well)} ready")


def _services(services: Sequence[Service]) -> Iterator[Line]:
    looping = [_name(each) for each in services if each.looping]
    failed = [_name(each) for each in services if each.rollout == "failed"]
    waiting = [_name(each) for each in services if each.rollout == "waiting"]
    for found, what, then in (
        (looping, "in a crash loop", "`roost why NAME` and `roost logs NAME` say why they keep ending"),
        (failed, "the change to a new version failed", "`roost rollback NAME`, or apply a better one"),
        (waiting, "canaries wait for a word", "`roost promote NAME`, or `roost rollback NAME`"),
    ):
        if found:
            yield Line("warn", "services", f"{what}: {names_shown(found)}", then)
    if services and not looping + failed + waiting:
        ready = sum(each.ready >= each.count for each in services)
        yield Line("ok", "services", f"{ready:,} of {len(services):,} have all their replicas ready")


def _schedules(schedules: Sequence[Schedule]) -> Iterator[Line]:
    live = [each for each in schedules if not each.ended]
    behind = [each for each in live if each.cause]
    for each in behind[:NAMES_SHOWN]:
        then = "`roost schedules`; its runs take too long, or the server was away: see `overlap` and `catch_up`"
        yield Line("warn", "schedules", f"{_name(each)}: {each.cause}", then)
    if len(behind) > NAMES_SHOWN:
        more = names_shown([_name(each) for each in behind[NAMES_SHOWN:]])
        yield Line("warn", "schedules", f"also behind: {more}", "`roost schedules`")
    if live and not behind:
        yield Line("ok", "schedules", f"{_all(len(live))} on time")


def _hooks(hooks: Sequence[Hook]) -> Iterator[Line]:
    live = [each for each in hooks if each.enabled]
    dead = [each for each in live if each.last_error and each.waiting]
    for hook in dead[:NAMES_SHOWN]:
        words = f"{_hook_name(hook)} is not taken: {hook.last_error}; {hook.waiting:,} events wait"
        yield Line("warn", "hooks", words, f"look at its receiver, then `roost hooks test {_hook_name(hook)}`")
    if len(dead) > NAMES_SHOWN:
        more = names_shown([_hook_name(each) for each in dead[NAMES_SHOWN:]])
        yield Line("warn", "hooks", f"also not taken: {more}", "`roost hooks`")
    missed = [_hook_name(each) for each in live if each.given_up or each.dropped or each.missing]
    if missed:
        then = "`roost hooks` says how many; let the receiver list again what it has to know"
        yield Line("warn", "hooks", f"events were given up or dropped: {names_shown(missed)}", then)
    if live and not dead and not missed:
        yield Line("ok", "hooks", f"{_all(len(live))} taken")


def names_shown(names: Sequence[str]) -> str:
    """The first of them, and how many there are besides."""
    more = f" and {len(names) - NAMES_SHOWN:,} more" if len(names) > NAMES_SHOWN else ""
    return ", ".join(names[:NAMES_SHOWN]) + more


def _told(ask: Callable[[], list[T]]) -> list[T]:
    """What the server tells us; nothing where that is not for our eyes."""
    try:
        return ask()
    except ApiError as error:
        if error.status in NOT_FOR_US:
            return []
        raise


def _name(of: Service | Schedule) -> str:
    return str(Target(of.project, of.name))


def _hook_name(hook: Hook) -> str:
    """As it is typed: one of all projects has no other name."""
    return hook.name if hook.project == "*" else f"{hook.project}/{hook.name}"


def _all(number: int) -> str:
    return f"all {number:,} are" if number > 1 else "the only one is"
