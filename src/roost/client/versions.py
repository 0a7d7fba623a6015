"""Versions of a workload: the client's calls for what it was, and for the ways back and on."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, cast

import msgspec

from roost.client.rolling import Standing, follow_rollout
from roost.client.transport import Transport, segment
from roost.client.types import Workload
from roost.client.version_types import Version, VersionPage
from roost.client.wait import wait_ready

if TYPE_CHECKING:
    from roost.client.client import Client


class VersionCalls:
    """What a client asks about versions."""

    _transport: Transport

    def versions(self, project: str, name: str, *, diff: bool = False) -> list[Version]:
        """The versions of a workload that are known, the newest first; with `diff` what each of them changed."""
        return self._versions(project, name, "each" if diff else "").items

    def version_diff(self, project: str, name: str, old: int, new: int) -> list[str]:
        """What differs between two versions, as lines of a unified diff."""
        return self._versions(project, name, f"{old}..{new}").diff

    def promote(self, project: str, name: str) -> Workload:
        """The canaries of a change are good: all others follow."""
        answer = self._transport.call("POST", f"{_path(project, name)}/promote")
        return msgspec.json.decode(answer.body, type=Workload)

    def rollback(self, project: str, name: str, version: int | None = None) -> Workload:
        """Back to an earlier version, which becomes a new one; none named: the last one that was good."""
        body = msgspec.json.encode({} if version is None else {"version": version})
        answer = self._transport.call("POST", f"{_path(project, name)}/rollback", None, body)
        return msgspec.json.decode(answer.body, type=Workload)

    def wait_for_version(
        self,
        workload: Workload,
        timeout_s: float | None = None,
        tell: Callable[[Standing], object] | None = None,
    ) -> Standing:
        """Wait until a workload is as it was applied: updated and available, or not any more. Raises WaitTimedOut.

        `tell` hears of every step on the way.
        """
        return follow_rollout(cast("Client", self), workload, timeout_s, tell)

    def wait_ready(
        self, keys: Sequence[tuple[str, str]], timeout_s: float | None = None, *, any_of: bool = False
    ) -> list[Standing]:
        """Wait until services (PROJECT, NAME) are ready at their present version, all replicas; or one of them is.

        One that ended, or whose change failed or was taken back, is not waited for any longer and is not `well`.
        With `any_of`: those that are there by then, those that are well in front. Raises WaitTimedOut.
        """
        return wait_ready(cast("Client", self), keys, timeout_s, any_of=any_of)

    def _versions(self, project: str, name: str, diff: str) -> VersionPage:
        query = {"diff": diff} if diff else None
        answer = self._transport.call("GET", f"{_path(project, name)}/versions", query)
        return msgspec.json.decode(answer.body, type=VersionPage)


def _path(project: str, name: str) -> str:
    return f"/v1/workloads/{segment(project)}/{segment(name)}"
