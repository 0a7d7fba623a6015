"""What users do during a chaos run: submit and cancel jobs, follow the changes, ask why. All answers are kept."""

import threading
from pathlib import Path
from random import Random

import msgspec

from roost.client import Client
from roost.client.errors import OUTCOME_UNKNOWN, ApiError, Unreachable
from roost.model.states import FINISHED
from roost.schema.feed import ChangeView
from roost_lab.chaos.checks import Evidence, SeenChange
from roost_lab.chaos.jobs import draw_job

PROJECT = "default"
CANCELLED = 0.05  # of jobs
PENDING_MAX = 60  # jobs that have not ended: beyond them the generator waits
PAUSE_S = 0.2  # after an error
WHY_PAUSE_S = 0.1
CONFLICT = 409  # only when the client has sent a submission again


class User(threading.Thread):
    """Does something again and again until it is stopped. An error of its own ends the whole run."""

    def __init__(self, client: Client, evidence: Evidence, seed: int) -> None:
        super().__init__(name=type(self).__name__, daemon=True)
        self._client = client
        self._evidence = evidence
        self._chance = Random(f"{seed}/{self.name}")
        self._enough = threading.Event()
        self.failed: Exception | None = None

    def run(self) -> None:
        try:
            while not self._enough.is_set():
                self.act()
        except Exception as error:
            self.failed = error

    def act(self) -> None:
        raise NotImplementedError

    def pause(self, seconds: float) -> None:
        self._enough.wait(seconds)

    def stop(self) -> None:
        self._enough.set()
        self.join()
        self._client.close()
        if self.failed is not None:
            raise self.failed


class Generator(User):
    """Submits jobs at a rate, and cancels some of them."""

    def __init__(self, client: Client, evidence: Evidence, seed: int, rate: float, ledger: Path) -> None:
        super().__init__(client, evidence, seed)
        self._rate = rate
        self._ledger = ledger
        self._number = 0

    def act(self) -> None:
        known, finished = self._evidence, {change.job for change in self._evidence.changes if change.state in FINISHED}
        if len(known.accepted) - len(finished) > PENDING_MAX:
            self.pause(PAUSE_S)
            return
        self._number += 1
        job = draw_job(self._chance, self._number)
        known.jobs[job.name] = job
        try:
            self._client.workloads.submit(job.document(self._ledger))
            known.accepted.append(job.name)
        except Unreachable:
            known.unknown.append(job.name)
        except ApiError as error:
            if error.code == OUTCOME_UNKNOWN or error.status == CONFLICT:
                known.unknown.append(job.name)
            else:
                known.refused[job.name] = f"{error.status} {error.code}: {error.message}"
                self.pause(PAUSE_S)
        if known.accepted and self._chance.random() < CANCELLED:
            self._cancel(self._chance.choice(known.accepted[-10:]))
        self.pause(self._chance.expovariate(self._rate))

    def _cancel(self, name: str) -> None:
        """Whatever the answer: it may have been done, so that the job may end as cancelled."""
        self._evidence.cancelled.append(name)
        try:
            self._client.workloads.cancel(PROJECT, name)
        except (ApiError, Unreachable):
            self.pause(PAUSE_S)


class Watcher(User):
    """Follows the changes of all jobs over as many connections as it takes; lists again after a reset."""

    def __init__(self, client: Client, evidence: Evidence, seed: int) -> None:
        super().__init__(client, evidence, seed)
        self._follower = client.changes.open(kinds=["instance", "workload"])

    def act(self) -> None:
        try:
            event = self._follower.next(PAUSE_S)
            if event is None:
                return
            if event.name == "reset":
                self._list()
                return
        except (ApiError, Unreachable):
            self.pause(PAUSE_S)
            return
        change = msgspec.json.decode(event.data, type=ChangeView)
        shown = change.object
        # A job that is cancelled while it is pending never becomes an instance.
        if shown is not None and (change.kind == "instance" or shown["finished_ms"]):
            seen = SeenChange(change.revision, shown["name"], shown["state"], shown.get("attempt", 0))
            self._evidence.changes.append(seen)

    def _list(self) -> None:
        self._evidence.resets += 1
        workloads = self._client.workloads.list(limit=len(self._evidence.jobs) + 1)
        self._evidence.listed |= {workload.name: workload.state for workload in workloads if workload.finished_ms}

    def has_seen(self, jobs: list[str]) -> bool:
        """Whether the end of each of these jobs has come."""
        seen = {change.job for change in self._evidence.changes if change.state in FINISHED}
        return set(jobs) <= seen | set(self._evidence.listed)


class Asker(User):
    """Asks why an accepted job is where it is."""

    def act(self) -> None:
        known = self._evidence
        self.pause(WHY_PAUSE_S)
        if not known.accepted:
            return
        name = self._chance.choice(known.accepted[-50:])
        known.whys += 1
        try:
            answer = self._client.workloads.why(PROJECT, name, 0, advice=self._chance.random() < 0.2)
            if not answer.message or answer.instance.rpartition("/")[2] != f"{name}.0":
                known.whys_wrong.append(f"{name}: {answer.instance} {answer.code!r}: {answer.message!r}")
        except Unreachable:
            known.whys_refused += 1
        except ApiError as error:
            if error.status == 503 or error.status == 429:
                known.whys_refused += 1
            else:
                known.whys_wrong.append(f"{name}: {error.status} {error.code}: {error.message}")
