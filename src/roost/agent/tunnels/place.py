"""Where a command goes that is started beside a run: the environment, directory and user of that run."""

from roost.agent.prepare import IsolationOf, environment, work_folder
from roost.agent.tunnels.command import RunPlace
from roost.agent.tunnels.console import ConsolePlace
from roost.agent.tunnels.container import ContainerPlace
from roost.drivers.container.request import ContainerHost
from roost.keeper.machines.console import SOCKET_NAME
from roost.keeper.run import environment as keepers_environment
from roost.model.protocol import Run
from roost.model.spec.document import decode_document
from roost.model.states import WorkloadKind

Place = RunPlace | ContainerPlace | ConsolePlace


def place_of(
    run: Run, pid: int, node: str, directory: str, mark: str, isolation: IsolationOf, host: ContainerHost
) -> Place:
    """As the keeper has made it, without its secrets: those were for the run. Raises Invalid."""
    document = decode_document(run.document)
    if document.kind == WorkloadKind.VM:
        return ConsolePlace(work_folder(directory, run.token), SOCKET_NAME)
    if document.image:
        return ContainerPlace(host.socket, host.name(run.token))
    place = work_folder(directory, run.token)
    env = keepers_environment(environment(run, document, node, directory), {}, str(run.token), place, mark)
    apart = isolation(document)
    if apart is None:
        return RunPlace(env, place, mark, pid)
    slot = pid if apart.level == "sandbox" else 0
    return RunPlace(env, place, mark, pid, slot, apart.user, apart.group, is_isolated=True)
