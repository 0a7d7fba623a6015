"""Short jobs that keep coming while servers fail, and what must be true of them afterwards."""

import threading
from collections import Counter
from pathlib import Path

from roost.client.errors import ApiError, Unreachable
from tests.failover.cluster import Cluster, Server

BATCH = 20
PAUSE_S = 0.02
WAIT_S = 120.0


class Flow(threading.Thread):
    """Submits jobs, each of which writes its name into a file when it runs. What was answered is accepted."""

    def __init__(self, cluster: Cluster, jobs: int, *, first: Server | None = None) -> None:
        super().__init__(name="flow")
        self._cluster = cluster
        self._first = first  # who is asked, for as long as it answers
        self._jobs = jobs
        self.ran = cluster.folder / "ran"
        self.ran.touch()
        self.accepted: list[str] = []
        self.unanswered = 0
        self._enough = threading.Event()

    def run(self) -> None:
        number = 0
        with self._cluster.client(first=self._first) as client:
            while number < self._jobs and not self._enough.is_set():
                names = [f"job-{index}" for index in range(number, number + BATCH)]
                number += BATCH
                documents = [_document(name, self.ran) for name in names]
                try:
                    client.workloads.submit_batch(documents)
                    self.accepted += names
                except (ApiError, Unreachable):
                    self.unanswered += 1
                    self._enough.wait(PAUSE_S)

    def stop(self) -> None:
        self._enough.set()
        self.join()

    def runs(self) -> Counter[str]:
        """How often each job has begun."""
        return Counter(self.ran.read_text().split())

    def check(self) -> None:
        """Everything that was accepted has run to its end, once per attempt, and the room is free again."""
        self.join()
        cluster = self._cluster
        with cluster.client() as client:
            client.workloads.wait([("default", name) for name in self.accepted], timeout_s=WAIT_S)
            runs = self.runs()
            wrong = []
            for name in self.accepted:
                instance = client.instances.get("default", name)
                # An attempt may have been called back before it began; none has begun twice.
                if instance.state != "succeeded" or not 1 <= runs[name] <= instance.attempt:
                    wrong.append((name, instance.state, instance.attempt, runs[name]))
            assert not wrong, (
                f"{len(wrong)} of {len(self.accepted)} are wrong (name, state, attempts, runs): {wrong[:5]}"
            )
            cluster.until(lambda: all(not node.running for node in client.nodes.list()), "nothing is held now")


def lines(path: Path) -> int:
    """How many lines a file has."""
    return path.read_text().count("\n")


def _document(name: str, ran: Path) -> dict[str, object]:
    script = f"echo $ROOST_WORKLOAD >> {ran}"
    return {"name": name, "command": ["/bin/sh", "-c", script], "resources": {"cpu": "500m"}, "retention": "1h"}
