"""Virtual machines: list them, change their power, wait for it."""

import builtins
import time
from collections.abc import Sequence

from roost.client.errors import WaitTimedOut
from roost.client.namespace import Namespace, path_of
from roost.client.wait import ChangeCalls
from roost.schema.work import VmPage, VmView


class VmCalls(Namespace):
    """The machines of workloads of `kind: vm`."""

    def list(self, *, project: str = "", power: str = "", limit: int | None = None) -> builtins.list[VmView]:
        """Live machines, newest first. `power`: only running ones that are running, paused or stopped."""
        return self._items("/v1/vms", VmPage, {"project": project, "power": power}, limit)

    def get(self, project: str, name: str) -> builtins.list[VmView]:
        """The machines of a workload, by index."""
        return self._get(path_of("/v1/vms/{}/{}", project, name), VmPage).items

    def power(
        self, project: str, name: str, action: str, index: int | None = None, *, grace_ms: int | None = None
    ) -> builtins.list[VmView]:
        """start, stop, pause, resume, reboot or reset one machine or all of a workload. It does not wait for the node.

        `grace_ms`: how long a guest may take to shut down before it is switched off; else as its document says.
        """
        body = {"action": action, "index": index, "grace_ms": grace_ms}
        return self._call("POST", path_of("/v1/vms/{}/{}/power", project, name), VmPage, body).items

    def wait(self, commanded: Sequence[VmView], timeout_s: float | None = None) -> builtins.list[VmView]:
        """Wait until nodes have carried out the last commands for machines of one workload, or failed to (`problem`).

        `commanded`: as `power` answers. A machine that begins anew, as another version, is waited for until it
        runs, and one that ends is not. Raises WaitTimedOut.
        """
        wanted = {vm.index: vm.power.serial if vm.power is not None else 0 for vm in commanded if not vm.is_over}
        if not wanted:
            return [*commanded]
        project, name = commanded[0].project, commanded[0].name
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        path = path_of("/v1/vms/{}/{}", project, name)
        page = self._get(path, VmPage)
        changes = ChangeCalls(self._transport)
        with changes.open(since=page.revision, kinds=("instance",), workload=f"{project}/{name}") as follower:
            while late := [vm for vm in page.items if _is_pending(vm, wanted)]:
                if follower.next_before(deadline) is None:
                    raise WaitTimedOut(f"not done in time: {', '.join(f'{vm.name}.{vm.index}' for vm in late[:10])}")
                page = self._get(path, VmPage)
        return [vm for vm in page.items if vm.index in wanted]


def _is_pending(vm: VmView, wanted: dict[int, int]) -> bool:
    if vm.index not in wanted or vm.is_over:
        return False
    if vm.power is None:  # it begins anew, with another version
        return not wanted[vm.index]
    return vm.power.pending and vm.power.serial <= wanted[vm.index]
