"""roost store: copy, check, back up, restore and repair the state."""

import asyncio
import sys
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec

from roost.cli.common.exit_codes import DONE, FAILED, Failure
from roost.cli.common.format import ago, current_ms
from roost.cli.common.options import DURATION
from roost.cli.common.output import Output, echo_err, print_table
from roost.cli.common.session import connect, json_output
from roost.model.errors import Invalid, Unreadable
from roost.model.spec.units import show_bytes
from roost.ports.store import Damaged, Snapshot, StoreError, require
from roost.server.cluster.election import read_identity
from roost.server.maintenance.backup import as_of_now, read_backup, revision_as_of_now, write_backup
from roost.server.maintenance.verify import Examined, examine
from roost.stores.copy import fill, is_unfinished
from roost.stores.factory import MemoryPlace, Place, open_store, read_place
from roost.stores.inspect import StoreStatus, inspect, live_leader
from roost.stores.sqlite.mark import accept_database

SERVER = "server"  # in place of a URL: the server that the client is configured for
T = TypeVar("T")

FINDINGS_SHOWN = 20  # on a terminal; --json has more

watch_option = click.option(
    "--watch", "watch_ms", type=DURATION, default=5_000, show_default="5s", metavar="DURATION",
    help="How long to watch a shared store for a live leader: longer than its --leader-ttl.",
)  # fmt: skip
force_option = click.option("--force", is_flag=True, help="Empty the store first, if it is not.")


@click.group()
def store() -> None:
    """Copy, check, back up, restore and repair the state.

    These commands access the store directly. Run them where it is reachable, as the user of the server.

    Examples:
      roost store check /var/lib/roost
      roost store copy sqlite:/var/lib/roost postgresql://roost@db-1/roost
      roost store backup etcd://h1:2379,h2:2379/roost tonight.roost
      roost store restore tonight.roost sqlite:/var/lib/roost-new
      roost store repair /var/lib/roost

    A store is named by its URL, as with `roost server --store`:
      DIRECTORY or sqlite:DIRECTORY              roost.db in a server's data directory
      postgresql://USER@HOST/DATABASE            one schema; ?schema=NAME if it is not `roost`
      etcd://HOST:2379,HOST:2379/PREFIX          the keys below a prefix

    Next: `roost doctor` checks everything around them.
    """


@store.command()
@click.argument("source", metavar="FROM")
@click.argument("target", metavar="TO")
@force_option
@click.option("--live", is_flag=True, help="Copy although FROM has a live leader: the state of this moment.")
@watch_option
def copy(source: str, target: str, force: bool, live: bool, watch_ms: int) -> None:
    """Copy the content of one store to another.

    Stop the servers of FROM first: their later changes would be missing in TO. TO must not be in use. Every record is
    compared at the end. The revision continues, and so do watchers.

    Examples:
      roost store copy /var/lib/roost postgresql://roost@db-1/roost
      roost store copy postgresql://roost@db-1/roost etcd://h1:2379/roost --force
      roost store copy --live postgresql://roost@db-1/roost /tmp/look-at-this

    Next: `roost store check TO`, then `roost server --store TO` (a directory: --data TO) with the key of the
    secrets (--key-file FROM/seal.key). Keep FROM until it runs.
    """
    of, to = _kept_place(source), _kept_place(target)
    if str(of) == str(to):
        raise Failure(f"{of} cannot be copied to itself")
    if not live:
        _refuse_led(of, watch_ms, "it would go on without TO; stop its servers, or copy this moment with --live")
    before = None if live else _seen(of)
    snapshot = _read(source)
    echo_err(f"{of} has {len(snapshot.records):,} records at revision {snapshot.revision:,}")
    records, revision = snapshot.records, snapshot.revision
    if live:
        now_ms = current_ms()
        records, revision = as_of_now(records, now_ms), revision_as_of_now(revision, now_ms, now_ms)
    _fill(target, to, records, revision, force, watch_ms)
    if before is not None and _seen(of) != before:
        message = f"{of} was used while it was copied: {to} has the state of before"
        raise Failure(message, "stop its servers, copy again")


@store.command()
@click.argument("url")
@json_output
def check(url: str) -> Output:
    """Check that a store is consistent; exit with 1 if it is not.

    Every record is decoded, and the state is compared with the invariants. Nothing is written. PostgreSQL and etcd can
    be checked while servers use them.

    Examples:
      roost store check /var/lib/roost
      roost store check postgresql://roost@db-1/roost --json

    Next: if it exits with 1, save a copy and restore the last backup with `roost store restore`.
    """
    place = _kept_place(url)
    sight = _seen(place)
    examined = examine(_load(url, place), current_ms())
    lead = sight.lead._asdict() if sight.lead.epoch else None
    value = {"store": str(place), "sound": not examined.wrong, "lead": lead, **msgspec.structs.asdict(examined)}
    return Output(value, lambda: _show(place, sight, examined), FAILED if examined.wrong else DONE)


@store.command()
@click.argument("url")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@json_output
def backup(url: str, file: Path) -> Output:
    """Write the content of a store into a file.

    PostgreSQL and etcd may be in use: the file has the state of one revision. SQLite is locked by its server: stop it,
    or use `server` as URL (admins). The file has mode 0600, because it holds secrets.

    Examples:
      roost store backup postgresql://roost@db-1/roost /backup/roost-monday
      roost store backup etcd://h1:2379,h2:2379/roost /backup/roost-monday
      roost store backup /var/lib/roost /backup/roost-monday        while the server is stopped
      roost store backup server /backup/roost-monday                of your server, while it runs

    Next: `roost store restore FILE URL` restores it, into any kind of store. Test it once.
    """
    if url == SERVER:
        with connect() as client:
            place = f"the server at {client.url}"
            snapshot = msgspec.msgpack.decode(client.servers.backup(), type=Snapshot)
    else:
        place, snapshot = str(_kept_place(url)), _read(url)
    try:
        header = write_backup(file.absolute(), snapshot, place, current_ms())
    except OSError as error:
        raise Failure(f"{file} cannot be written: {error.strerror or error}; there is no backup") from None
    size = show_bytes(file.stat().st_size)
    message = f"{file}: {len(snapshot.records):,} records at revision {snapshot.revision:,} of {place}, {size}"
    return Output(header, lambda: click.echo(message))


@store.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("url")
@force_option
@watch_option
def restore(file: Path, url: str, force: bool, watch_ms: int) -> None:
    """Restore a backup into a store.

    Stop all servers of the store first. A damaged or incomplete file is refused before anything is written. The
    revision jumps ahead, because clients may have seen later changes: they list again.

    Examples:
      roost store restore /backup/roost-monday sqlite:/var/lib/roost-new
      roost store restore /backup/roost-monday postgresql://roost@db-1/roost --force

    Next: `roost store check URL`, then start the servers. Agents report their work: attempts that the backup knows
    continue, others are stopped.
    """
    place = _kept_place(url)
    try:
        header, records = read_backup(file)
    except Unreadable as error:
        raise Failure(f"{error}; nothing was changed", "take another backup") from None
    except OSError as error:
        raise Failure(f"{file} cannot be read: {error.strerror or error}; nothing was changed") from None
    of = f"revision {header.revision:,} of {header.store}, {ago(header.taken_ms)}"
    echo_err(f"{file} has {len(records):,} records at {of}")
    now_ms = current_ms()
    revision = revision_as_of_now(header.revision, header.taken_ms, now_ms)
    _fill(url, place, as_of_now(records, now_ms), revision, force, watch_ms)


@store.command()
@click.argument("directory", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--accept-loss", is_flag=True, help="Go on without the commits that are missing.")
def repair(directory: Path, accept_loss: bool) -> None:
    """Go on with a SQLite database that lost acknowledged commits.

    A server refuses a data directory whose database is gone, or older than what clients were answered. First try to
    bring back roost.db and roost.db-wal as they were, or restore a backup into a new directory. Stop the server first,
    and keep a copy of the directory.

    Examples:
      roost store repair /var/lib/roost                  what is missing; changes nothing
      roost store repair /var/lib/roost --accept-loss    go on with what is there

    Next: `roost store check DIRECTORY`, then start the server. Agents report their work: attempts that the database
    knows continue, others are stopped.
    """
    url = f"sqlite:{directory.absolute()}"
    try:
        found = asyncio.run(load_store(url))
        echo_err(f"{directory} has every acknowledged commit, up to revision {found.revision:,}: nothing to repair")
        return
    except StoreError as error:
        if not isinstance(error.failure, Damaged):
            raise Failure(str(error)) from None
        if not accept_loss:
            raise Failure(str(error), "add --accept-loss to go on without what is missing") from None
    revision, now_ms = accept_database(directory), current_ms()
    found = _run(load_store(url))
    # As after a restore: revisions and serials that were given since then are not given again.
    revision = revision_as_of_now(max(revision, found.revision), now_ms, now_ms)
    filled = _run(fill(url, as_of_now(found.records, now_ms), revision, lambda done, total: None))
    echo_err(f"{directory} goes on with {filled.records:,} records at revision {filled.revision:,}")


def _kept_place(url: str) -> Place:
    place = read_place(url)
    if isinstance(place, MemoryPlace):
        raise Invalid("store", "nothing is kept in memory that another command could see; name a directory or a URL")
    return place


def _seen(place: Place) -> StoreStatus:
    return _run(inspect(place))


def _read(url: str) -> Snapshot:
    """Everything of a store that is there, whole and not empty."""
    place = _kept_place(url)
    snapshot = _load(url, place)
    if is_unfinished(snapshot.records):
        raise Failure(f"{place} is not whole: a copy into it was not finished", "run that again with --force")
    if not snapshot.records:
        raise Failure(f"{place} is empty: there is nothing to copy", "check the URL; is it another schema or prefix?")
    return snapshot


def _load(url: str, place: Place) -> Snapshot:
    """All records. A missing store is not created, and one of an earlier release is not changed."""
    sight = _seen(place)
    if not sight.there:
        raise Failure(f"there is no store of Roost: {place}", "check the URL, and the schema or prefix in it")
    if sight.holder:
        raise Failure(f"{place} is in use by {sight.holder}", "stop that server first; it has the file for itself")
    if sight.outdated:
        raise Failure(f"{place} was made by an earlier release", "start a server of this release with it once")
    return _run(load_store(url))


async def load_store(url: str) -> Snapshot:
    store = open_store(url)
    try:
        return require(await store.load())
    finally:
        await store.close()


def _fill(url: str, place: Place, records: list[Any], revision: int, force: bool, watch_ms: int) -> None:
    _refuse_led(place, watch_ms, "stop all servers that use it")
    sight = _seen(place)
    if not force and sight.there and _load(url, place).records:
        raise Failure(f"{place} is not empty", "--force empties it first; `roost store backup` keeps what is there")
    began = time.monotonic()

    def progress(done: int, total: int) -> None:
        if sys.stderr.isatty():
            rate = done / max(0.001, time.monotonic() - began)
            click.echo(f"\r  {done:,} of {total:,} records, {rate:,.0f} a second", nl=done == total, err=True)

    filled = _run(fill(url, records, revision, progress, sight.lead))
    what = f"{filled.records:,} records at revision {filled.revision:,}"
    gone = f", instead of {filled.removed:,} that were there" if filled.removed else ""
    echo_err(f"{place} has {what}{gone}; all compared, {time.monotonic() - began:.1f} s")


def _refuse_led(place: Place, watch_ms: int, what_next: str) -> None:
    leader = _run(live_leader(place, watch_ms / 1_000))
    if leader:
        raise Failure(f"{place} is led by {_name(leader)}", what_next)


def _run(work: Coroutine[Any, Any, T]) -> T:
    try:
        return asyncio.run(work)
    except StoreError as error:
        raise Failure(str(error)) from None


def _show(place: Place, sight: StoreStatus, examined: Examined) -> None:
    click.echo(f"Store:    {place}, revision {examined.revision:,}")
    click.echo(f"Lead:     {_format_lead(sight.lead, examined.unclean_takeover_ms)}")
    click.echo(f"Records:  {examined.records:,}, {examined.bytes:,} bytes")
    rows = [(kind.kind, f"{kind.records:,}", f"{kind.bytes:,}") for kind in examined.kinds]
    if rows:
        click.echo()
        print_table(("KIND", "RECORDS", "BYTES"), rows)
        click.echo()
        largest = [(f"{large.kind} {large.key}", f"{large.bytes:,}") for large in examined.largest]
        print_table(("LARGEST", "BYTES"), largest)
    click.echo()
    for finding in examined.findings[:FINDINGS_SHOWN]:
        name = f"{finding.kind} {finding.key}: " if finding.kind else ""
        click.echo(f"wrong: {name}{finding.message}")
    if examined.wrong > FINDINGS_SHOWN:
        click.echo(f"... and {examined.wrong - FINDINGS_SHOWN:,} more; --json has more of them")
    sound = "sound: every record is read, no rule broken"
    click.echo(f"not sound: {examined.wrong:,} found" if examined.wrong else sound)


def _format_lead(lead: Any, unclean_takeover_ms: int) -> str:
    if not lead.epoch:
        return "no server"  # the holder of the lock of SQLite is the leader, and we have it
    message = f"{_name(lead.identity)}, epoch {lead.epoch:,}, renewed {lead.renewals:,} times"
    if lead.successor:
        message += "; it has released leadership"
    return message + (f"; last taken from one that was gone {ago(unclean_takeover_ms)}" if unclean_takeover_ms else "")


def _name(identity: str) -> str:
    existing = read_identity(identity)
    return identity if existing is None else f"{existing.name} at {existing.api}" if existing.api else existing.name
