"""One chaos run: start everything, let users and the nemesis work, heal, wait for the end, check, report."""

import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import msgspec

from roost.client import Client
from roost.client.errors import ApiError, LogIncomplete, Unreachable
from roost.model.states import InstanceState
from roost_lab.chaos.checks import CheckResult, Ended, Evidence, LogRead, check_all, counts_of, log_problem
from roost_lab.chaos.cluster import Cluster, Server, Setup
from roost_lab.chaos.jobs import read_ledgers
from roost_lab.chaos.nemesis import FaultDone, Nemesis
from roost_lab.chaos.plan import AGENTS, Fault, plan_faults
from roost_lab.chaos.traffic import PROJECT, Asker, Generator, User, Watcher

END_S_MAX = 300.0  # until everything that was accepted has ended, without faults
SEEN_S_MAX = 60.0  # until the stream of changes has delivered all of it
LOGS_S_MAX = 60.0  # until all bytes of all logs have reached every server
READERS = 16  # of logs at once: a server waits ten seconds before it calls the rest of a log missing
RATE = 3.0  # jobs a second
DISK_MIB = 64  # of a server, where its disk can be filled ...
DISK_MIB_PER_S = 0.1  # ... and more for the logs of a long run


class ChaosLoad(NamedTuple):
    seed: int
    seconds: float
    rate: float


class ChaosReport(msgspec.Struct):
    store: str
    seed: int
    seconds: float
    took_s: float
    faults: list[FaultDone]
    counts: Mapping[str, int]
    checks: list[CheckResult]
    evidence: str = ""  # the directory where it is kept, if a check failed

    @property
    def is_good(self) -> bool:
        return not any(result.wrong for result in self.checks)


def run_chaos(
    store: str, seed: int, seconds: float, tell: Callable[[str], None], *,
    rate: float = RATE, keep: bool = False, faults: list[Fault] | None = None,
    agent_environment: dict[str, str] | None = None,
) -> ChaosReport:  # fmt: skip
    """`faults`: instead of those of the seed. Raises Missing, if the store is not installed, and TimeoutError, if the
    system does not come to rest after the faults."""
    began = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix=f"roost-chaos-{store}-"))
    evidence = Evidence()
    is_kept = True
    try:
        disk_mib = DISK_MIB + int(seconds * DISK_MIB_PER_S)
        setup = Setup(AGENTS, disk_mib, agent_environment=agent_environment or {})
        with Cluster(folder, store, setup) as cluster:
            nemesis = Nemesis(cluster, tell)
            planned = plan_faults(seed, store, seconds) if faults is None else faults
            _live(cluster, nemesis, planned, evidence, ChaosLoad(seed, seconds, rate), tell)
        evidence.ledger = read_ledgers(folder / "ledger")
        checks = check_all(evidence)
        report = ChaosReport(
            store, seed, seconds, round(time.monotonic() - began, 1), nemesis.done, counts_of(evidence), checks
        )
        is_kept = keep or not report.is_good
        if is_kept:
            report.evidence = str(folder)
            (folder / "evidence.json").write_bytes(msgspec.json.encode(evidence))
            (folder / "report.json").write_bytes(msgspec.json.format(msgspec.json.encode(report)))
        return report
    except BaseException:
        tell(f"the evidence is in {folder}")
        raise
    finally:
        if not is_kept:
            shutil.rmtree(folder, ignore_errors=True)


def _live(
    cluster: Cluster, nemesis: Nemesis, faults: list[Fault], evidence: Evidence, load: ChaosLoad,
    tell: Callable[[str], None],
) -> None:  # fmt: skip
    """Users and faults side by side; then users ask for nothing new, faults end, and everything has to end."""
    ledger = cluster.folder / "ledger"
    ledger.mkdir(mode=0o777)
    watcher, asker = Watcher(cluster.client(), evidence, load.seed), Asker(cluster.client(), evidence, load.seed)
    generator = Generator(cluster.client(), evidence, load.seed, load.rate, ledger)
    users: list[User] = [watcher, asker, generator]
    for user in users:
        user.start()
    began = time.monotonic()
    nemesis.run(faults)
    time.sleep(max(0.0, began + load.seconds - time.monotonic()))
    generator.stop()
    tell(f"faults have ended; waiting for {len(evidence.accepted)} accepted jobs to end")
    cluster.heal()
    cluster.wait_until(lambda: _all_ended(cluster, evidence), "all jobs have ended", END_S_MAX)
    asker.stop()
    cluster.wait_until(lambda: _nothing_allocated(cluster, evidence) or None, "nothing is allocated", SEEN_S_MAX)
    succeeded = [name for name, ended in evidence.ended.items() if ended.state == InstanceState.SUCCEEDED]
    deadline = time.monotonic() + SEEN_S_MAX
    while not watcher.has_seen(list(evidence.ended)) and time.monotonic() < deadline and watcher.is_alive():
        time.sleep(0.1)
    watcher.stop()
    tell(f"reading {len(succeeded)} logs from {len(cluster.servers)} servers")
    for server in cluster.servers:
        evidence.logs += _read_logs(cluster, server, evidence, succeeded)


def _all_ended(cluster: Cluster, evidence: Evidence) -> bool:
    with cluster.client() as client:
        workloads = client.workloads.list(limit=len(evidence.jobs) + 1)
        if not all(workload.finished_ms for workload in workloads):
            return False
        for name in (workload.name for workload in workloads):
            instance = client.instances.get(PROJECT, name)
            evidence.ended[name] = Ended(instance.state, instance.attempt, instance.message)
    return True


def _nothing_allocated(cluster: Cluster, evidence: Evidence) -> bool:
    with cluster.client() as client:
        for node in client.nodes.list():
            evidence.allocated[node.name] = node.running + sum(use.used for use in node.resources.values())
    return not any(evidence.allocated.values())


def _read_logs(cluster: Cluster, server: Server, evidence: Evidence, names: list[str]) -> list[LogRead]:
    deadline = time.monotonic() + LOGS_S_MAX

    def read(name: str) -> LogRead:
        with Client(server.url, cluster.token) as client:
            return _read_log(client, server, evidence, name, deadline)

    with ThreadPoolExecutor(READERS) as threads:
        return list(threads.map(read, names))


def _read_log(client: Client, server: Server, evidence: Evidence, name: str, deadline: float) -> LogRead:
    """A log that is still on its way is reported as such; one that is called complete is compared."""
    attempt = evidence.ended[name].attempt
    while True:
        try:
            data = client.logs.read(PROJECT, name, 0, attempt=attempt)
            problem = log_problem(data, evidence.jobs[name].log(attempt))
            return LogRead(server.name, name, attempt, len(data), problem)
        except (LogIncomplete, ApiError, Unreachable) as error:
            if time.monotonic() > deadline:
                return LogRead(server.name, name, attempt, 0, str(error))
            time.sleep(0.2)
