"""Rounds of recovery on one store: submit, kill, let everything end, and compare all bytes at every server."""

import contextlib
import shutil
import signal
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from random import Random

import msgspec

from roost.client import Client
from roost.client.errors import ApiError, ClientError, Unreachable
from roost.schema.work import InstanceView
from roost_lab.chaos.cluster import Cluster, Program, Setup
from roost_lab.chaos.nemesis import agents_of, descendants, send_signal
from roost_lab.components import seaweedfs
from roost_lab.recovery.compare import PROJECT, Answer, compare_log, compare_outputs
from roost_lab.recovery.jobs import document, input_of
from roost_lab.recovery.plan import LOG_BYTES, SHARED, Kill, RecoveryJob, plan_round

AGENTS = 2
END_S_MAX = 300.0  # until everything has ended that was accepted
SERVED_S_MAX = 60.0  # until a server has all bytes, or a reason that stays
PAUSE_S = 0.2
GONE = 404

Tell = Callable[[str], None]


class RoundDone(msgspec.Struct):
    number: int
    kills: list[str] = []
    counts: dict[str, int] = {}
    unanswered: list[str] = []  # submissions, with the errors of their client
    refused: list[str] = []  # after everything was up again for a minute
    wrong: list[str] = []


class RecoveryReport(msgspec.Struct):
    store: str
    seed: int
    took_s: float
    rounds: list[RoundDone]
    evidence: str = ""  # the directory where it is kept, if a round was wrong

    @property
    def good(self) -> int:
        return sum(not done.wrong for done in self.rounds)

    @property
    def is_good(self) -> bool:
        return self.good == len(self.rounds)

    @property
    def counts(self) -> dict[str, int]:
        total: Counter[str] = Counter(kills=sum(len(done.kills) for done in self.rounds))
        for done in self.rounds:
            total.update(done.counts)
        return dict(total)


def run_recovery(
    store: str, seed: int, rounds: int, tell: Tell, *, log_bytes_max: int = LOG_BYTES[1],
    agent_environment: Mapping[str, str] | None = None,
) -> RecoveryReport:  # fmt: skip
    """Raises Missing, if the store is not installed, and TimeoutError, if jobs do not end."""
    began = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix=f"roost-recovery-{store}-"))
    done: list[RoundDone] = []
    is_kept = True
    try:
        with (
            _blobs(store) as (blobs, setup),
            Cluster(folder, store, setup._replace(agent_environment=agent_environment or {})) as cluster,
        ):
            recovery = _Recovery(cluster, blobs, store == "memory", Random(f"{seed}/{store}"))
            for number in range(rounds):
                planned = plan_round(seed, store, number, log_bytes_max)
                done.append(recovery.round(number, planned.jobs, planned.kills))
                tell(_line(done[-1]))
        report = RecoveryReport(store, seed, round(time.monotonic() - began, 1), done)
        is_kept = not report.is_good
        if is_kept:
            report.evidence = str(folder)
            (folder / "report.json").write_bytes(msgspec.json.format(msgspec.json.encode(report)))
        return report
    finally:
        if is_kept:
            tell(f"the evidence is in {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _blobs(store: str) -> Iterator[tuple[seaweedfs.SeaweedFS | None, Setup]]:
    if store not in SHARED:
        yield None, Setup(AGENTS)
        return
    with seaweedfs.SeaweedFS() as server:
        place = f"s3://recovery/blobs?endpoint={server.endpoint}"
        keys = {"AWS_ACCESS_KEY_ID": seaweedfs.ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": seaweedfs.SECRET_KEY}
        yield server, Setup(AGENTS, options=("--blobs", place), environment=keys)


def _line(done: RoundDone) -> str:
    counts = ", ".join(f"{count:,} {name}" for name, count in sorted(done.counts.items()))
    problems = "".join(f"\n  {line}" for line in (*done.wrong, *done.refused, *done.unanswered))
    return f"round {done.number}: killed {', '.join(done.kills)}; {counts}{problems}"


class _Recovery:
    """`forgets`: the servers keep no state over a restart, so that a job may be unknown afterwards."""

    def __init__(self, cluster: Cluster, blobs: seaweedfs.SeaweedFS | None, forgets: bool, chance: Random) -> None:
        self._cluster = cluster
        self._blobs = blobs
        self._forgets = forgets
        self._chance = chance
        self._ended: dict[str, tuple[RecoveryJob, InstanceView]] = {}  # compared, and still there

    def round(self, number: int, jobs: list[RecoveryJob], kills: list[Kill]) -> RoundDone:
        done = RoundDone(number, [kill.what for kill in kills])
        earlier = list(self._ended.values())
        deleted = self._chance.choice(earlier)[0].name if earlier else ""
        read = [one for one in earlier if one[0].name != deleted]
        accepted: list[str] = []
        counts: Counter[str] = Counter()
        users = [
            threading.Thread(target=self._submit, args=(jobs, accepted, done, counts)),
            threading.Thread(target=self._read, args=(read, done, counts)),
            threading.Thread(target=self._delete, args=(deleted, counts)),
        ]
        for user in users:
            user.start()
        self._kill_all(kills)  # in this thread: a child of Roost dies with the thread that started it
        for user in users:
            user.join()
        self._cluster.wait_until(self._all_up, "all servers are up", END_S_MAX)
        self._cluster.heal()
        if deleted:
            self._check_deleted(deleted, bool(counts["deleted"]), done)
        for job in jobs:
            self._check_job(job, job.name in accepted, done, counts)
        done.counts = dict(counts)
        return done

    # users, while processes are killed

    def _submit(self, jobs: list[RecoveryJob], accepted: list[str], done: RoundDone, counts: Counter[str]) -> None:
        for job in jobs:
            data = self._cluster.folder / f"{job.name}.input"
            data.write_bytes(input_of(job))
            try:
                with self._cluster.client() as client:
                    client.workloads.submit(document(job, data))
                accepted.append(job.name)
                counts["accepted"] += 1
            except ClientError as error:  # it may have been accepted
                counts["unanswered"] += 1
                done.unanswered.append(f"{job.name}: {error}")
            data.unlink()

    def _read(self, earlier: list[tuple[RecoveryJob, InstanceView]], done: RoundDone, counts: Counter[str]) -> None:
        for job, instance in earlier[-2:]:
            with self._cluster.client() as client:
                for answer in (compare_log(client, job, instance.attempt), compare_outputs(client, job, instance)):
                    counts["read meanwhile"] += not answer.refused
                    counts["refused meanwhile"] += bool(answer.refused)
                    done.wrong += [f"{job.name}, read meanwhile: {answer.wrong}"] if answer.wrong else []

    def _delete(self, name: str, counts: Counter[str]) -> None:
        if not name:
            return
        del self._ended[name]
        with contextlib.suppress(ClientError), self._cluster.client() as client:
            client.workloads.delete(PROJECT, name)
            counts["deleted"] += 1

    # kills

    def _kill_all(self, kills: list[Kill]) -> None:
        began = time.monotonic()
        for kill in kills:
            time.sleep(max(0.0, began + kill.at_s - time.monotonic()))
            match kill.what:
                case "leader" | "server":
                    servers = self._cluster.servers
                    leader = self._leader() if kill.what == "leader" else None
                    self._replace(leader or servers[kill.target % len(servers)], kill)
                case "keeper" | "node":
                    self._replace(self._cluster.agents[kill.target % AGENTS], kill)
                case "agent":
                    for pid in agents_of(self._cluster.agents[kill.target % AGENTS].pid):
                        send_signal(pid, signal.SIGKILL)
                case "blobs":
                    assert self._blobs is not None
                    self._blobs.kill()
                    time.sleep(kill.down_s)
                    self._blobs.start()

    def _replace(self, program: Program, kill: Kill) -> None:
        if kill.what == "node":
            program.send(signal.SIGSTOP)  # it starts nothing while its children are counted
            for pid in descendants(program.pid):
                send_signal(pid, signal.SIGKILL)
        program.end()
        time.sleep(kill.down_s)
        program.start()

    def _leader(self) -> Program | None:
        """None: there is none that can be asked for now."""
        with contextlib.suppress(ClientError), self._cluster.client() as client:
            leaders = [server.name for server in client.servers.list().items if server.role == "leader"]
            return next((server for server in self._cluster.servers if server.name in leaders), None)
        return None

    def _all_up(self) -> bool:
        for server in self._cluster.servers:
            with Client(server.url, self._cluster.token) as client:
                client.status()
        return True

    # what every server answers afterwards

    def _check_job(self, job: RecoveryJob, is_accepted: bool, done: RoundDone, counts: Counter[str]) -> None:
        if not self._has_ended(job.name):
            counts["forgotten"] += is_accepted
            if is_accepted and not self._forgets:
                done.wrong.append(f"{job.name} was accepted and does not exist")
            return
        counts["jobs"] += 1
        for server in self._cluster.servers:
            with Client(server.url, self._cluster.token) as client:
                instance = self._settled(client, job.name)
                if instance.state != "succeeded":
                    done.wrong.append(f"{job.name} is {instance.state} at {server.name}: {instance.message}")
                    return
                for what, ask in (
                    ("logs", partial(compare_log, client, job, instance.attempt)),
                    ("outputs", partial(compare_outputs, client, job, instance)),
                ):
                    answer = _served(ask)
                    counts[f"{what} whole"] += not answer.refused and not answer.wrong
                    counts[f"{what} refused"] += bool(answer.refused)
                    counts[f"bytes of {what}"] += answer.size
                    done.refused += [f"{job.name}, {what} at {server.name}: {answer.refused}"] if answer.refused else []
                    done.wrong += [f"{job.name} at {server.name}: {answer.wrong}"] if answer.wrong else []
        self._ended[job.name] = job, instance

    def _has_ended(self, name: str) -> bool:
        """Waits for its end. False: no server knows it."""
        known = True

        def ended() -> bool:
            nonlocal known
            with self._cluster.client() as client:
                try:
                    return bool(client.workloads.get(PROJECT, name).finished_ms)
                except ApiError as error:
                    if error.status != GONE:
                        raise
                    known = False
                    return True

        self._cluster.wait_until(ended, f"{name} has ended", END_S_MAX)
        return known

    def _settled(self, client: Client, name: str) -> InstanceView:
        """The instance as this server has it; a standby may be behind for a moment."""
        found: list[InstanceView] = []

        def known() -> bool:
            found[:] = [client.instances.get(PROJECT, name)]
            return found[0].is_over

        self._cluster.wait_until(known, f"a server knows the end of {name}", END_S_MAX)
        return found[0]

    def _check_deleted(self, name: str, is_certain: bool, done: RoundDone) -> None:
        """Gone at every server with its log; without an answer to the request it may also be there."""
        for server in self._cluster.servers:
            with Client(server.url, self._cluster.token) as client:
                deadline = time.monotonic() + SERVED_S_MAX
                while is_certain and (kept := _kept(client, name)):
                    if time.monotonic() > deadline:
                        done.wrong.append(f"{name} was deleted, and {server.name} still has its {kept}")
                        break
                    time.sleep(PAUSE_S)


def _served(ask: Callable[[], Answer]) -> Answer:
    deadline = time.monotonic() + SERVED_S_MAX
    while (answer := ask()).refused and time.monotonic() < deadline:
        time.sleep(PAUSE_S)
    return answer


def _kept(client: Client, name: str) -> str:
    """What a server still answers about a workload."""
    asks: dict[str, Callable[[], object]] = {
        "record": lambda: client.workloads.get(PROJECT, name),
        "log": lambda: client.logs.read(PROJECT, name),
    }
    for what, ask in asks.items():
        try:
            ask()
        except Unreachable:
            return what
        except ApiError as error:
            if error.status == GONE:
                continue
        return what
    return ""
