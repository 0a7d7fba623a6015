"""Where a command goes that is started beside a run: the environment, directory and user of that run."""

from roost.agent.prepare import IsolationOf, environment, work_folder
from roost.agent.tunnels.command import RunPlace
from roost.keeper.run import environment as keepers_environment
from roost.model.errors import Invalid
from roost.model.protocol import Run
from roost.model.spec.document import decode_document
from roost.model.states import WorkloadKind


def place_of(run: Run, pid: int, node: str, directory: str, mark: str, isolation: IsolationOf) -> RunPlace:
    """As the keeper has made it, without its secrets: those were for the run. Raises Invalid."""
    document = decode_document(run.document)
    if document.image or document.kind == WorkloadKind.VM:
        raise Invalid("", "there is no way into containers and virtual machines yet")
    place = work_folder(directory, run.token)
    env = keepers_environment(environment(run, document, node, directory), {}, str(run.token), place, mark)
    apart = isolation(document)
    if apart is None:
        return RunPlace(env, place, mark, pid)
    slot = pid if apart.level == "sandbox" else 0
    return RunPlace(env, place, mark, pid, slot, apart.user, apart.group, is_isolated=True)
