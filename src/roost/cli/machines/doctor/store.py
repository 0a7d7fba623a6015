"""What `roost doctor` finds on this machine: room on the disk, and with --store the state itself."""

import asyncio
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from roost.cli.common.format import current_ms
from roost.cli.machines.doctor.command import DoctorCheck, bad, ok, warn
from roost.cli.tools.store import load_store
from roost.client.config import data_home
from roost.model.spec.units import show_bytes
from roost.ports.store import StoreError
from roost.server.cluster.election import read_identity
from roost.server.maintenance.verify import examine
from roost.stores.factory import Place, read_place
from roost.stores.inspect import StoreStatus, inspection

# A log of 16 to 64 MB and a checkpoint have to fit beside what is there, and logs grow unattended.
FREE_BAD = 256 << 20
FREE_WARN = 2 << 30
FREE_WARN_SHARE = 20  # a twentieth of the disk

# A renewal is one such read and a write; the lead is lost after 1.5 s.
READ_WARN_MS = 50.0
READS = 5

DATA_FILES = ("roost.db", "admin.token")  # what makes a directory a server's


def look_at_disk() -> Iterator[DoctorCheck]:
    """Room for the data directories of servers on this machine."""
    found = [data_home()]
    if config := os.environ.get("ROOST_CONFIG"):
        found.insert(0, Path(config).absolute().parent)
    if data := os.environ.get("ROOST_DATA"):
        found.insert(0, Path(data))
    for path in dict.fromkeys(found):
        if any((path / name).exists() for name in DATA_FILES):
            yield _room(path)


def look_at_store(url: str) -> Iterator[DoctorCheck]:
    """Latency, leader and consistency of a store. Nothing is written."""
    place = read_place(url)
    try:
        sight, line = asyncio.run(_reach(place))
        if not sight.there:
            yield bad("store", f"there is no store of Roost: {place}", "check the URL")
            return
        yield line
        yield _lead(sight)
        if sight.holder:
            yield ok("state", "its server has the file for itself; what is inside can be seen when it is stopped")
        elif sight.outdated:
            yield warn("state", "an earlier release made it", "start a server of this release with it once")
        else:
            yield asyncio.run(_soundness(url))
    except StoreError as error:
        yield bad("store", str(error), "nothing can be decided without the store")


def _room(directory: Path) -> DoctorCheck:
    usage = shutil.disk_usage(directory)
    message = f"{show_bytes(usage.free)} of {show_bytes(usage.total)} free for {directory}"
    if usage.free < FREE_BAD:
        return bad("disk", message, "make room: without it nothing can be committed")
    if usage.free < min(FREE_WARN, usage.total // FREE_WARN_SHARE):
        return warn("disk", message, "make room before it is used up")
    return ok("disk", message)


async def _reach(place: Place) -> tuple[StoreStatus, DoctorCheck]:
    took_ms = []
    began = time.perf_counter()
    async with inspection(place) as status:
        for _ in range(1 + READS):
            sight = await status()
            took_ms.append((time.perf_counter() - began) * 1_000)
            began = time.perf_counter()
    connect_ms, read_ms = took_ms[0], median(took_ms[1:])
    message = f"{place}: reached in {connect_ms:.1f} ms, a small read takes {read_ms:.1f} ms"
    if read_ms >= READ_WARN_MS:
        return sight, warn("store", message, "slow: check its load and the network")
    return sight, ok("store", message)


def _lead(sight: StoreStatus) -> DoctorCheck:
    if sight.holder:
        return ok("lead", f"led by {sight.holder}")
    if not sight.lead.epoch:
        return ok("lead", "it has no leader now")
    identity = read_identity(sight.lead.identity)
    name = identity.name if identity else sight.lead.identity
    since = f"epoch {sight.lead.epoch:,}; revision {sight.revision:,}"
    if sight.lead.successor:
        return ok("lead", f"it has no leader now; the last was {name}, {since}")
    return ok("lead", f"led by {name}, renewed {sight.lead.renewals:,} times, {since}")


async def _soundness(url: str) -> DoctorCheck:
    began = time.perf_counter()
    snapshot = await load_store(url)
    took = time.perf_counter() - began
    found = examine(snapshot, current_ms())
    message = f"{found.records:,} records, {found.bytes:,} bytes, read in {took:.1f} s"
    if not found.wrong:
        return ok("state", f"{message}; sound")
    first = found.findings[0]
    example = f"{first.kind} {first.key} {first.message}".strip()
    then = "keep a copy, then `roost store check` with the same URL names everything"
    return bad("state", f"{message}; not sound, {found.wrong:,} found: {example}", then)
