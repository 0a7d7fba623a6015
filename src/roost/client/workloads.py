"""Workloads, their instances and logs, schedules and services."""

import builtins
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import msgspec

from roost.client.errors import ApiError, LogIncomplete
from roost.client.files.calls import FileCalls
from roost.client.namespace import DETAILS, Namespace, path_of
from roost.client.stream import LogFollower
from roost.client.transport import Query
from roost.client.wait import WaitCalls
from roost.schema import work
from roost.schema.logs import LogLinesView
from roost.schema.page import Page
from roost.schema.pipelines.runs import PipelineStart, StartedRun
from roost.schema.pipelines.tests import TestsView
from roost.schema.plans import PlanView
from roost.schema.rollouts import VersionPage, VersionView
from roost.schema.schedules import SchedulePage, ScheduleView
from roost.schema.services import ServicePage, ServiceView
from roost.schema.why import WhyView

Document = Mapping[str, Any]
Stream = Literal["stdout", "stderr"]
Streams = Literal["stdout", "stderr", "all"]


class WorkloadCalls(WaitCalls):
    """Submit, list, explain, cancel; versions and waiting.

    What inputs of a document name on this machine (`from: ./data`) is sent before it is submitted.
    """

    def submit(
        self, document: Document, *, same_ok: bool = False, plan: str = "", rerun: bool = False
    ) -> work.SubmittedView:
        """Submit a workload. With `same_ok` a live one of that name is no conflict, and a finished job with the same
        document runs again only with `rerun`. `plan`: the token of a plan."""
        query: Query = {"same_ok": same_ok or None, "plan": plan, "rerun": rerun or None}
        return self._call("POST", "/v1/workloads", work.SubmittedView, self._sent(document), query)

    def submit_batch(
        self, documents: Sequence[Document], *, same_ok: bool = False, plan: str = "", rerun: bool = False
    ) -> builtins.list[work.SubmittedView]:
        """Submit many workloads, all or none. `plan`: the token of a plan for them."""
        query: Query = {"same_ok": same_ok or None, "plan": plan, "rerun": rerun or None}
        return self._call("POST", "/v1/workloads/batch", work.Accepted, list(map(self._sent, documents)), query).items

    def start_pipeline(
        self, pipeline: Mapping[str, Any], *, variables: Mapping[str, str] | None = None, only: Sequence[str] = (),
        retention: str = "", run: str = "",
    ) -> StartedRun:  # fmt: skip
        """Run a pipeline, all of its actions or none. `only`: these actions and their dependencies."""
        body = PipelineStart(dict(self._sent(pipeline)), dict(variables or {}), [*only], retention, run)
        return self._call("POST", "/v1/pipelines", StartedRun, body)

    def plan(self, documents: Sequence[Document]) -> PlanView:
        """What submitting workloads would do; nothing is done. Its token makes a submission do exactly that."""
        return self._call("POST", "/v1/plans", PlanView, list(map(self._sent, documents)))

    def list(
        self, *, project: str = "", name: str = "", state: str = "", label: str = "", limit: int | None = None,
        at: str = "",
    ) -> builtins.list[work.WorkloadView]:  # fmt: skip
        """Workloads, newest first. `label`: NAME or NAME=VALUE. `at`: a past state, see `history.moment`."""
        query: Query = {"project": project, "name": name, "state": state, "label": label, "at": at}
        return self._items("/v1/workloads", work.WorkloadPage, query, limit)

    def get(self, project: str, name: str, *, at: str = "") -> work.WorkloadDetail:
        """A workload with its document and its first instances."""
        return self._get(_path(project, name), work.WorkloadDetail, {"at": at})

    def why(self, project: str, name: str, index: int | None = None, *, advice: bool = True) -> WhyView:
        """Why an instance is placed or pending. Without an index: the first pending one.

        Without advice the answer is short and quick: without suggestions and estimated start.
        """
        query: Query = {"index": index, "advice": None if advice else False}
        return self._get(_path(project, name, "/why"), WhyView, query)

    def cancel(self, project: str, name: str, index: int | None = None) -> work.WorkloadView:
        """Stop a workload or one instance; idempotent."""
        return self._call("POST", _path(project, name, "/cancel"), work.WorkloadView, work.Chosen(index))

    def retry(self, project: str, name: str, index: int | None = None, *, failed: bool = False) -> work.WorkloadView:
        """Retry instances that did not succeed (`failed`: only failed ones), or one instance whatever its result."""
        return self._call("POST", _path(project, name, "/retry"), work.WorkloadView, work.Again(index, failed))

    def delete(self, project: str, name: str) -> work.WorkloadView:
        """Delete a finished workload with its logs and results; the history keeps its record. Raises Conflict."""
        return self._call("DELETE", _path(project, name), work.WorkloadView)

    def approve(self, project: str, name: str) -> work.WorkloadView:
        """Let a workload start that waits for approval; idempotent."""
        return self._call("POST", _path(project, name, "/approve"), work.WorkloadView)

    def tests(self, project: str, name: str) -> TestsView:
        """The tests of JUnit reports among the outputs of a workload."""
        return self._get(_path(project, name, "/tests"), TestsView)

    def versions(self, project: str, name: str, *, diff: bool = False) -> builtins.list[VersionView]:
        """The known versions of a workload, newest first; with `diff` what each of them changed."""
        return self._get(_path(project, name, "/versions"), VersionPage, {"diff": "each" if diff else ""}).items

    def promote(self, project: str, name: str) -> work.WorkloadView:
        return self._call("POST", _path(project, name, "/promote"), work.WorkloadView)

    def rollback(self, project: str, name: str, version: int | None = None) -> work.WorkloadView:
        """Roll back to an earlier version, which becomes a new one; by default the last good one."""
        body = {} if version is None else {"version": version}
        return self._call("POST", _path(project, name, "/rollback"), work.WorkloadView, body)

    def _sent(self, document: Document) -> Document:
        return FileCalls(self._transport).send_inputs(document)

    def run_to_end(self, document: Document, timeout_s: float | None = None) -> work.WorkloadDetail:
        workload = self.submit(document)
        self.wait([(workload.project, workload.name)], timeout_s=timeout_s)
        return self.get(workload.project, workload.name)


class _ResultText(msgspec.Struct, frozen=True):
    index: int
    data: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class InstanceCalls(Namespace):
    def list(
        self, project: str, name: str, *, state: str = "", limit: int | None = None, at: str = ""
    ) -> builtins.list[work.InstanceView]:
        """The instances of a workload, including unstarted ones."""
        return self._items(_path(project, name, "/instances"), work.InstancePage, {"state": state, "at": at}, limit)

    def get(self, project: str, name: str, index: int = 0, *, at: str = "") -> work.InstanceDetail:
        return self._get(_path(project, name, f"/instances/{index}"), work.InstanceDetail, {"at": at})

    def result(self, project: str, name: str, index: int = 0, *, at: str = "") -> Any:
        """The result of an instance: the JSON that its last attempt wrote, decoded. Without one: ApiError 404."""
        return msgspec.json.decode(self.result_json(project, name, index, at=at))

    def result_json(self, project: str, name: str, index: int = 0, *, at: str = "") -> bytes:
        """The same as text: digits of numbers are as they were written."""
        return self._transport.call("GET", _path(project, name, f"/instances/{index}/result"), {"at": at}).body

    def results(self, project: str, name: str, *, at: str = "") -> builtins.list[work.InstanceResult]:
        """The results of all instances that wrote one, by index."""
        return self._items(_path(project, name, "/results"), work.ResultPage, {"at": at})

    def results_json(self, project: str, name: str, *, at: str = "") -> dict[int, bytes]:
        """The same as text, by index, without those that were not kept."""
        found = self._items(_path(project, name, "/results"), Page[_ResultText, int], {"at": at})
        return {item.index: bytes(item.data) for item in found if item.data is not msgspec.UNSET}

    def post_result(
        self, project: str, name: str, index: int, token: int, code: int | None = None, message: str = "",
        data: Any = msgspec.UNSET,
    ) -> work.InstanceView:  # fmt: skip
        """Post the result of an attempt that runs: an exit code, which ends it, JSON, or both."""
        path = _path(project, name, f"/instances/{index}/result")
        return self._call("POST", path, work.InstanceView, work.ResultBody(token, code, message, data))


class LogCalls(Namespace):
    """The logs of instances. Attempt 0 is the newest.

    `stream` is `stdout` or `stderr`. Unless its document has `stderr: separate`, a run has one log: `stdout` has both.
    """

    def read(self, project: str, name: str, index: int = 0, *, attempt: int = 0, stream: Stream = "stdout") -> bytes:
        """What an attempt has written so far; all of it once it has ended. Raises LogIncomplete."""
        return b"".join(self.pieces(project, name, index, attempt=attempt, stream=stream))

    def pieces(
        self, project: str, name: str, index: int = 0, *, attempt: int = 0, offset: int = 0, stream: Stream = "stdout"
    ) -> Iterator[bytes]:
        """The same piece by piece, for logs that do not fit into memory. Raises LogIncomplete at the end."""
        path = _path(project, name, f"/instances/{index}/log")
        while True:
            try:
                answer = self._transport.call("GET", path, {"attempt": attempt, "offset": offset, "stream": stream})
            except ApiError as error:
                if error.code != "log_unavailable" or "missing" not in error.params:
                    raise
                raise LogIncomplete(error.params["missing"], error.message) from None
            if answer.body:
                yield answer.body
            # A read belongs to one attempt, also when the next one begins meanwhile.
            attempt = int(answer.headers.get("roost-log-attempt", attempt))
            offset = int(answer.headers.get("roost-log-next", offset + len(answer.body)))
            missing = int(answer.headers.get("roost-log-missing", 0))
            finished = answer.headers.get("roost-log-finished") == "true"
            if offset >= int(answer.headers.get("roost-log-size", 0)) and (finished or not missing):
                if missing:
                    raise LogIncomplete(missing)
                return

    def lines(
        self, project: str, name: str, index: int = 0, *, attempt: int = 0, stream: Stream = "stdout",
        since: str = "", grep: str = "", tail: int | None = None,
    ) -> Iterator[LogLinesView]:  # fmt: skip
        """Lines with the times when they came: since a time, with a text, the last ones. Searched on the server.

        The last answer has the position to follow from: its `attempt` and `next`. Raises LogIncomplete at the end.
        """
        query: Query = {"stream": stream, "since": since, "grep": grep, "tail": tail}
        offset = 0
        while True:
            path = _path(project, name, f"/instances/{index}/log/lines")
            found = self._get(path, LogLinesView, {**query, "attempt": attempt, "offset": offset})
            yield found
            attempt, offset = found.attempt, found.next
            if offset >= found.size or tail is not None:
                if found.missing and found.finished:
                    raise LogIncomplete(found.missing)
                return

    def follow(
        self, project: str, name: str, index: int = 0, *, attempt: int = 0, stream: Streams = "stdout",
        offset: int = 0, stderr_offset: int = 0,
    ) -> LogFollower:  # fmt: skip
        """What an instance writes, as it comes, over all attempts from this one on, until it ends.

        With `all` both logs of a run with a separate stderr: pieces of stderr are StderrBytes. The offsets are those of
        the first attempt.
        """
        path = _path(project, name, f"/instances/{index}/log/follow")
        query: Query = {"attempt": attempt, "stream": stream, "offset": offset, "stderr_offset": stderr_offset}
        return LogFollower(lambda last_id: self._transport.stream(path, query, last_id))


class ScheduleCalls(Namespace):
    """Jobs that run again and again. `coming`: how many of the next ticks are shown."""

    def list(self, *, project: str = "", coming: int = 1) -> builtins.list[ScheduleView]:
        return self._items("/v1/schedules", SchedulePage, {"project": project, "next": coming}, most=DETAILS)

    def get(self, project: str, name: str, *, coming: int = 1) -> ScheduleView:
        return self._get(path_of("/v1/schedules/{}/{}", project, name), ScheduleView, {"next": coming})

    def run(self, project: str, name: str) -> work.WorkloadView:
        """Run once now, in addition to the ticks. The run is a workload of its own."""
        return self._call("POST", path_of("/v1/schedules/{}/{}/run", project, name), work.WorkloadView)


class ServiceCalls(Namespace):
    """Live services and their addresses. `ready`: only addresses that are ready to be used."""

    def list(self, *, project: str = "", ready: bool = False) -> builtins.list[ServiceView]:
        return self._items("/v1/services", ServicePage, {"project": project, "ready": ready or None}, most=DETAILS)

    def get(self, project: str, name: str, *, ready: bool = False) -> ServiceView:
        return self._get(path_of("/v1/services/{}/{}", project, name), ServiceView, {"ready": ready or None})


def _path(project: str, name: str, more: str = "") -> str:
    return path_of("/v1/workloads/{}/{}", project, name) + more
