"""The versions of a workload, as `roost history NAME` shows them."""

from typing import TYPE_CHECKING, Any

import click

from roost.cli.output import print_json, print_table
from roost.cli.past import day_and_time, rfc3339

if TYPE_CHECKING:
    from roost.client import Client
    from roost.client.version_types import Version

HEADER = ("VERSION", "SINCE", "INSTANCES", "UPDATE", "CHANGE")
COLORS = {"+": "green", "-": "red", "@": "cyan"}


def was_changed(client: "Client", project: str, name: str) -> bool:
    """Whether there is a workload of this name that has had another version."""
    page = client.page(project, name)
    return bool(page.items) and page.items[0].version > 1


def print_versions(client: "Client", project: str, name: str, diff: bool, as_json: bool) -> None:
    """All that are known, the newest first; with `diff` what each has changed."""
    found = client.versions(project, name, diff=diff)
    if as_json:
        print_json([_told(each, diff) for each in found])
        return
    if not diff:
        print_table(HEADER, [_row(each) for each in found])
        return
    for number, version in enumerate(found):
        if number:
            click.echo()
        print_table(HEADER, [_row(version)])
        for line in version.diff[2:]:  # which two versions these are, the table has told
            click.echo(click.style(line, fg=COLORS.get(line[:1])))


def _row(version: "Version") -> tuple[str, ...]:
    mark = "*" if version.present else ""
    update = version.rollout.state if version.rollout is not None else "-"
    if not version.present and update in ("rolling", "waiting"):
        update = "overtaken"
    since = day_and_time(version.at_ms).partition(".")[0]
    return f"{version.version}{mark}", since, str(version.instances), update, version.change


def _told(version: "Version", diff: bool) -> dict[str, Any]:
    import msgspec  # noqa: PLC0415  (the client has it imported)

    told = msgspec.structs.asdict(version)
    del told["document"]  # variables may be for few eyes
    if not diff:
        del told["diff"]
    told["at"] = rfc3339(told.pop("at_ms"))
    return told
