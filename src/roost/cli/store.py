"""roost store: look after where the state is kept: copy it elsewhere, check it, back it up, bring it back."""

import asyncio
import sys
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from roost.cli.outcome import FAILED, Failure
from roost.cli.output import ago, print_json, print_table, say
from roost.cli.session import DURATION, json_option
from roost.model.units import show_bytes

if TYPE_CHECKING:
    from roost.ports.store import Snapshot
    from roost.server.store_check import Examined
    from roost.stores.opening import Place

SERVER = "server"  # in place of a URL: the server that the client is configured for
T = TypeVar("T")

FINDINGS_SHOWN = 20  # on a terminal; --json has more

watch_option = click.option(
    "--watch", "watch_ms", type=DURATION, default=5_000, show_default="5s", metavar="DURATION",
    help="How long to look whether a server leads a shared store: longer than its --lead-ttl.",
)  # fmt: skip
force_option = click.option("--force", is_flag=True, help="Empty the store first, if it is not.")


@click.group(
    epilog="""\b
Examples:
  roost store check /var/lib/roost
  roost store copy sqlite:/var/lib/roost postgresql://roost@db-1/roost
  roost store backup etcd://h1:2379,h2:2379/roost tonight.roost
  roost store restore tonight.roost sqlite:/var/lib/roost-new
\b
A store is named by its URL, as with `roost server --store`:
  DIRECTORY or sqlite:DIRECTORY              roost.db in a server's data directory
  postgresql://USER@HOST/DATABASE            one schema; ?schema=NAME if it is not `roost`
  etcd://HOST:2379,HOST:2379/PREFIX          the keys below a prefix
\b
Next: docs/stores.md says which store is for whom. `roost doctor` looks at everything around it.
"""
)
def store() -> None:
    """Copy, check, back up and restore the state of a server.

    These commands talk to the store itself, not to a server: run them where the store can be reached, as the user
    who runs the server.
    """


@store.command(
    epilog="""\b
Examples:
  roost store copy /var/lib/roost postgresql://roost@db-1/roost
  roost store copy postgresql://roost@db-1/roost etcd://h1:2379/roost --force
  roost store copy --live postgresql://roost@db-1/roost /tmp/look-at-this
\b
Next: `roost store check TO`, then `roost server --store TO` (a directory: --data TO) with the key that secrets are
sealed with (--key-file FROM/seal.key). Keep FROM until you have seen it run.
"""
)
@click.argument("source", metavar="FROM")
@click.argument("target", metavar="TO")
@force_option
@click.option("--live", is_flag=True, help="Copy even though a server leads FROM: the state of this moment.")
@watch_option
def copy(source: str, target: str, force: bool, live: bool, watch_ms: int) -> None:
    """Copy everything from one store to another.

    Stop the servers of FROM first: what they do afterwards would not be in TO. Nobody may use TO. Every record is
    compared in the end. The revision goes on where it was, so that watchers go on where they were.
    """
    from roost.server.store_file import as_of_now, revision_as_of_now  # noqa: PLC0415

    of, to = _kept_place(source), _kept_place(target)
    if str(of) == str(to):
        raise Failure(f"{of} cannot be copied to itself")
    if not live:
        _refuse_led(of, watch_ms, "it would go on without TO; stop its servers, or copy this moment with --live")
    before = None if live else _run(_seen(of))
    snapshot = _read(source)
    say(f"{of} has {len(snapshot.records):,} records at revision {snapshot.revision:,}")
    records, revision = snapshot.records, snapshot.revision
    if live:
        now_ms = _now_ms()
        records, revision = as_of_now(records, now_ms), revision_as_of_now(revision, now_ms, now_ms)
    _fill(target, to, records, revision, force, watch_ms)
    if before is not None and _run(_seen(of)) != before:
        raise Failure(
            f"{of} was used while it was copied: {to} has the state of before", "stop its servers, copy again"
        )


@store.command(
    epilog="""\b
Examples:
  roost store check /var/lib/roost
  roost store check postgresql://roost@db-1/roost --json
\b
Next: nothing, if it exits with 0. Otherwise keep a copy and restore the last backup: `roost store restore`.
"""
)
@click.argument("url")
@json_option
@click.pass_context
def check(ctx: click.Context, url: str, as_json: bool) -> None:
    """Read everything in a store and say whether it is sound; exit with 1 if it is not.

    Every record is read as a server would read it, and the state that they make is held against Roost's own rules.
    Nothing is written. PostgreSQL and etcd can be checked while servers use them.
    """
    from roost.server.store_check import examine  # noqa: PLC0415

    place = _kept_place(url)
    sight = _run(_seen(place))
    examined = examine(_load(url, place), _now_ms())
    if as_json:
        lead = sight.lead._asdict() if sight.lead.epoch else None
        print_json({"store": str(place), "sound": not examined.wrong, "lead": lead, **_fields(examined)})
    else:
        click.echo(f"Store:    {place}, revision {examined.revision:,}")
        click.echo(f"Lead:     {_lead_words(sight.lead, examined.taken_suddenly_ms)}")
        _show(examined)
    if examined.wrong:
        ctx.exit(FAILED)


@store.command(
    epilog="""\b
Examples:
  roost store backup postgresql://roost@db-1/roost /backup/roost-monday
  roost store backup etcd://h1:2379,h2:2379/roost /backup/roost-monday
  roost store backup /var/lib/roost /backup/roost-monday        while the server is stopped
  roost store backup server /backup/roost-monday                of the server that you talk to, while it runs
\b
Next: `roost store restore FILE URL` brings it back, into any kind of store. Try it once before you need it.
"""
)
@click.argument("url")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@json_option
def backup(url: str, file: Path, as_json: bool) -> None:
    """Write everything of a store into a file.

    PostgreSQL and etcd can be used by servers meanwhile: the file holds the state as of one revision. SQLite is locked
    by its server: stop that, or say `server`, and it tells everything itself (for admins). Only you can read the file;
    it holds secrets, some of them sealed.
    """
    from roost.server.store_file import write_backup  # noqa: PLC0415

    place, snapshot = _told_by_server() if url == SERVER else (str(_kept_place(url)), _read(url))
    try:
        header = write_backup(file.absolute(), snapshot, place, _now_ms())
    except OSError as error:
        raise Failure(f"{file} cannot be written: {error.strerror or error}; there is no backup") from None
    if as_json:
        print_json(header)
        return
    size = show_bytes(file.stat().st_size)
    click.echo(f"{file}: {len(snapshot.records):,} records at revision {snapshot.revision:,} of {place}, {size}")


@store.command(
    epilog="""\b
Examples:
  roost store restore /backup/roost-monday sqlite:/var/lib/roost-new
  roost store restore /backup/roost-monday postgresql://roost@db-1/roost --force
\b
Next: `roost store check URL`, then start the servers. Agents tell what they run: what the backup knows goes on,
what it does not know is stopped.
"""
)
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("url")
@force_option
@watch_option
def restore(file: Path, url: str, force: bool, watch_ms: int) -> None:
    """Fill a store with what a backup holds.

    Stop all servers of the store first. A file that is damaged or not whole is refused before anything is written. The
    revision jumps ahead, because clients may have seen what came after the backup: they list again.
    """
    from roost.model.errors import Unreadable  # noqa: PLC0415
    from roost.server.store_file import as_of_now, read_backup, revision_as_of_now  # noqa: PLC0415

    place = _kept_place(url)
    try:
        header, records = read_backup(file)
    except Unreadable as error:
        raise Failure(f"{error}; nothing was changed", "take another backup") from None
    except OSError as error:
        raise Failure(f"{file} cannot be read: {error.strerror or error}; nothing was changed") from None
    say(
        f"{file} has {len(records):,} records at revision {header.revision:,} of {header.store}, {ago(header.taken_ms)}"
    )
    now_ms = _now_ms()
    revision = revision_as_of_now(header.revision, header.taken_ms, now_ms)
    _fill(url, place, as_of_now(records, now_ms), revision, force, watch_ms)


# what the commands share


def _kept_place(url: str) -> "Place":
    from roost.model.errors import Invalid  # noqa: PLC0415
    from roost.stores.opening import MemoryPlace, read_place  # noqa: PLC0415

    place = read_place(url)
    if isinstance(place, MemoryPlace):
        raise Invalid("store", "nothing is kept in memory that another command could see; name a directory or a URL")
    return place


def _told_by_server() -> tuple[str, "Snapshot"]:
    """Everything that the server has, as of one revision."""
    import msgspec  # noqa: PLC0415

    from roost.cli.session import connect  # noqa: PLC0415
    from roost.ports.store import Snapshot  # noqa: PLC0415

    with connect() as client:
        return f"the server at {client.url}", msgspec.msgpack.decode(client.backup(), type=Snapshot)


async def _seen(place: "Place") -> Any:
    from roost.stores.looking import look  # noqa: PLC0415

    return await look(place)


def _read(url: str) -> "Snapshot":
    """Everything of a store that is there, whole and not empty."""
    from roost.stores.filling import is_unfinished  # noqa: PLC0415

    place = _kept_place(url)
    snapshot = _load(url, place)
    if is_unfinished(snapshot.records):
        raise Failure(f"{place} is not whole: a copy into it was not finished", "run that again with --force")
    if not snapshot.records:
        raise Failure(f"{place} is empty: there is nothing to copy", "check the URL; is it another schema or prefix?")
    return snapshot


def _load(url: str, place: "Place") -> "Snapshot":
    """Everything. A store that is not there is not made, and one of an earlier release is not changed."""
    sight = _run(_seen(place))
    if not sight.there:
        raise Failure(f"there is no store of Roost: {place}", "check the URL, and the schema or prefix in it")
    if sight.holder:
        raise Failure(f"{place} is in use by {sight.holder}", "stop that server first; it has the file for itself")
    if sight.outdated:
        raise Failure(f"{place} was made by an earlier release", "start a server of this release with it once")

    async def load() -> "Snapshot":
        from roost.stores.opening import open_store  # noqa: PLC0415

        store = open_store(url)
        try:
            return await store.load()
        finally:
            await store.close()

    return _run(load())


def _fill(url: str, place: "Place", records: list[Any], revision: int, force: bool, watch_ms: int) -> None:
    from roost.stores.filling import fill  # noqa: PLC0415

    _refuse_led(place, watch_ms, "stop all servers that use it")
    sight = _run(_seen(place))
    if not force and sight.there and _load(url, place).records:
        raise Failure(f"{place} is not empty", "--force empties it first; `roost store backup` keeps what is there")
    began = time.monotonic()
    filled = _run(fill(url, place, records, revision, _progress(began), sight.lead))
    took = time.monotonic() - began
    gone = f", instead of {filled.removed:,} that were there" if filled.removed else ""
    say(f"{place} has {filled.records:,} records at revision {filled.revision:,}{gone}; all compared, {took:.1f} s")


def _refuse_led(place: "Place", watch_ms: int, what_next: str) -> None:
    from roost.stores.looking import live_leader  # noqa: PLC0415

    leader = _run(live_leader(place, watch_ms / 1_000))
    if leader:
        raise Failure(f"{place} is led by {_name(leader)}", what_next)


def _run(work: Coroutine[Any, Any, T]) -> T:
    """Do something with a store; what it refuses is told in its own words."""
    from roost.ports.store import StoreError  # noqa: PLC0415

    try:
        return asyncio.run(work)
    except StoreError as error:
        raise Failure(str(error)) from None


def _progress(began: float) -> Any:
    """On a terminal, a line that counts."""

    def tell(done: int, total: int) -> None:
        if sys.stderr.isatty():
            rate = done / max(0.001, time.monotonic() - began)
            end = "\n" if done == total else ""
            click.echo(f"\r  {done:,} of {total:,} records, {rate:,.0f} a second", nl=False, err=True)
            click.echo(end, nl=False, err=True)

    return tell


def _show(examined: "Examined") -> None:
    click.echo(f"Records:  {examined.records:,}, {examined.bytes:,} bytes")
    rows = [(kind.kind, f"{kind.records:,}", f"{kind.bytes:,}") for kind in examined.kinds]
    if rows:
        click.echo()
        print_table(("KIND", "RECORDS", "BYTES"), rows)
        click.echo()
        print_table(("LARGEST", "BYTES"), [(f"{each.kind} {each.key}", f"{each.bytes:,}") for each in examined.largest])
    click.echo()
    for finding in examined.findings[:FINDINGS_SHOWN]:
        name = f"{finding.kind} {finding.key}: " if finding.kind else ""
        click.echo(f"wrong: {name}{finding.words}")
    if examined.wrong > FINDINGS_SHOWN:
        click.echo(f"... and {examined.wrong - FINDINGS_SHOWN:,} more; --json has more of them")
    click.echo(
        f"not sound: {examined.wrong:,} found" if examined.wrong else "sound: every record is read, no rule broken"
    )


def _lead_words(lead: Any, taken_suddenly_ms: int) -> str:
    if not lead.epoch:
        return "nobody"  # SQLite is led by whoever has its lock, and we have it
    words = f"{_name(lead.identity)}, epoch {lead.epoch:,}, renewed {lead.beat:,} times"
    if lead.heir:
        words += "; it has let go"
    return words + (f"; last taken from one that was gone {ago(taken_suddenly_ms)}" if taken_suddenly_ms else "")


def _name(identity: str) -> str:
    """A server's name and address out of what it signed with."""
    from roost.server.election import read_identity  # noqa: PLC0415

    known = read_identity(identity)
    return identity if known is None else f"{known.name} at {known.api}" if known.api else known.name


def _fields(examined: "Examined") -> dict[str, Any]:
    import msgspec  # noqa: PLC0415

    return msgspec.structs.asdict(examined)


def _now_ms() -> int:
    return int(time.time() * 1_000)
