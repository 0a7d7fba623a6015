"""roost result: the JSON that runs have written as their result."""

import click
import msgspec

from roost.cli.common.as_of import at_option, settle
from roost.cli.common.exit_codes import NO_RESULT, Failure
from roost.cli.common.options import project_option
from roost.cli.common.output import Output, write_bytes
from roost.cli.common.session import client_output, wants_json
from roost.cli.common.targets import TARGET, Target, in_project
from roost.client import Client
from roost.client.errors import ApiError
from roost.schema.work import InstanceResult, ResultView


@click.command()
@click.argument("target", type=TARGET, metavar="NAME[.INDEX]")
@project_option
@at_option
@client_output
def result(client: Client, target: Target, project: str, at: str) -> Output:
    """Print the result of a run: the JSON that it wrote to the file $ROOST_RESULT.

    Of an array, one line for each element that has a result: {"index":0,"result":...}.

    Examples:
      roost result train          of the only instance, or one line per element
      roost result train.7        of one element of an array
      roost result train | jq .accuracy
      roost result train --json   with state, attempt, and why a result was not kept

    The exit code is 5 if there is no result.

    Next: `roost show NAME` shows why a result was not kept.
    """
    target, at = in_project(target, project), settle(client, at)
    project, name, index = target.project, target.name, target.index
    if index is None and client.workloads.get(project, name, at=at).count == 1:
        index = 0
    if index is not None:
        return _one(client, Target(project, name, index), at)
    if wants_json():
        found = client.instances.results(project, name, at=at)
        return Output(found, "", 0 if any(item.size for item in found) else NO_RESULT)
    kept = client.instances.results_json(project, name, at=at)
    lines = [b'{"index":%d,"result":%b}\n' % item for item in kept.items()]
    if not lines:
        raise Failure(f"no instance of {target} has a result", exit_code=NO_RESULT)
    return Output(None, lambda: write_bytes(b"".join(lines)))


def _one(client: Client, target: Target, at: str) -> Output:
    project, name, index = target.project, target.name, target.index or 0
    try:
        data = client.instances.result_json(project, name, index, at=at)
    except ApiError as error:
        if error.code != "no_result":
            raise
        if not wants_json():
            raise Failure(str(error), exit_code=NO_RESULT) from None
        data = b""
    if not wants_json():
        return Output(None, lambda: write_bytes(data + b"\n"))
    view = client.instances.get(project, name, index, at=at)
    shown = view.result or ResultView(size=0)
    fields = {**msgspec.structs.asdict(shown), "data": msgspec.Raw(data) if data else msgspec.UNSET}
    result = InstanceResult(index=index, state=view.state, attempt=view.attempt, **fields)
    return Output(result, "", 0 if data else NO_RESULT)
