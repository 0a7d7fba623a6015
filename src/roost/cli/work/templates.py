"""roost templates: workload documents with typed parameters, by name and version."""

from typing import Any

import click
import msgspec

from roost.cli.common.exit_codes import USAGE, Failure, exit_code_of, on_lines
from roost.cli.common.format import ago
from roost.cli.common.options import FILE, project_option
from roost.cli.common.output import Output, listed, print_fields, print_table, printable_lines
from roost.cli.common.session import client_output, listing
from roost.cli.common.template_values import SHARED, TEMPLATE, TemplateName
from roost.cli.work.apply import read_file
from roost.client import Client
from roost.client.errors import ApiError
from roost.model.limits import DEFAULT_PROJECT
from roost.model.records.template import Parameter
from roost.schema.work import TemplateApplied, TemplateDetail, TemplateView

HEADER = ("TEMPLATE", "VERSION", "CHANGED", "BY", "DESCRIPTION")
PARAMETERS_HEADER = ("PARAMETER", "TYPE", "DEFAULT", "RULES", "DESCRIPTION")
EMPTY = "there are no templates; `roost templates apply FILE` makes one, docs/guides/templates.md shows how"
SAMPLES = {"string": "TEXT", "integer": "N", "number": "N", "boolean": "true", "array": "TEXT"}


@listing("templates")
@click.option("-p", "--project", default="", help="Only those that a workload of this project can use.")
@client_output
def templates(client: Client, project: str) -> Output:
    """List, apply, show and delete templates: workloads with typed parameters.

    A template belongs to a project, or is shared by all (*/NAME). Each apply of something different makes a version.

    Examples:
      roost templates
      roost templates apply train.yaml
      roost templates show train
      roost templates show train@2
      roost run --template train -P epochs=3
      roost templates delete train

    Next: `roost templates show NAME` lists the parameters of one.
    """
    found = client.templates.list(project)
    return listed(found, HEADER, _row, EMPTY)


@templates.command()
@click.argument("file", type=FILE, metavar="FILE")
@project_option
@client_output
def apply(client: Client, file: str, project: str) -> Output:
    """Apply the template of a YAML or JSON file: its first version, or a new one.

    The file has a name, parameters and a workload, in which "{{NAME}}" stands for a parameter. An unchanged template
    is left as it is. The newest ten versions are kept. With `shared: true` it is for all projects, which needs the
    role admin everywhere. No value is read as shell code: lines get quoted variables.

    Examples:
      roost templates apply train.yaml        where train.yaml is, for example:
        name: train
        parameters: {lr: {type: number, default: 0.1}, epochs: {type: integer}}
        workload: {steps: ["train --lr {{lr}} --epochs {{epochs}}"]}
      generate | roost templates apply -

    Next: `roost run --template NAME -P K=V`. Workloads that exist keep what they were made of.
    """
    fields = _read(file)
    shared = fields.pop("shared", False)
    if not isinstance(shared, bool):
        raise Failure(f"{file}: shared: this is true or false", exit_code=USAGE)
    if shared and "project" in fields:
        raise Failure(f"{file}: project: a shared template has none; leave it out", exit_code=USAGE)
    owner = SHARED if shared else fields.pop("project", project)
    name = fields.pop("name", None)
    for field, value in (("name", name), ("project", owner)):
        if not isinstance(value, str) or not value:
            raise Failure(f"{file}: {field}: this is needed: a text", exit_code=USAGE)
    try:
        done = client.templates.apply(owner, name, fields)
    except ApiError as error:
        if error.status not in (400, 413, 422):
            raise
        lines = on_lines(f"{file}: {path}: {text}" if path else f"{file}: {text}" for path, text in error.errors)
        raise Failure(lines, error.hint, exit_code_of(error)) from None
    return Output(done, _applied(done))


def _applied(done: TemplateApplied) -> str:
    name = _shown(done)
    if done.result == "unchanged":
        return f"template {name} is unchanged: version {done.version}"
    dropped = f"; version {done.dropped} is not kept any longer" if done.dropped else ""
    return f"template {name} has version {done.version}{dropped}"


@templates.command()
@click.argument("template", type=TEMPLATE, metavar="[PROJECT/]NAME[@VERSION]")
@project_option
@client_output
def show(client: Client, template: TemplateName, project: str) -> Output:
    """Show a template: its parameters and its workload.

    It is the one that a workload of the project would use: the project's own, or the shared one of that name.

    Examples:
      roost templates show train
      roost templates show ml/train@2
      roost templates show '*/train'          the shared one
      roost templates show train --json

    Next: `roost run --template NAME -P K=V`.
    """
    found = client.templates.get(template.project or project, template.name, template.version)
    return Output(found, lambda: _print(found, project))


@templates.command()
@click.argument("template", type=TEMPLATE, metavar="[PROJECT/]NAME")
@project_option
@click.option("--shared", is_flag=True, help="The shared template of that name.")
@client_output
def delete(client: Client, template: TemplateName, project: str, shared: bool) -> Output:
    """Delete a template with all its versions. Workloads that were made from it stay.

    Examples:
      roost templates delete train
      roost templates delete ml/train
      roost templates delete train --shared

    Next: `roost templates`. A template of that name that is applied later begins with version 1.
    """
    if template.version:
        raise click.UsageError("a template is deleted with all its versions; leave out @VERSION")
    owner = SHARED if shared else template.project or project
    client.templates.delete(owner, template.name)
    return Output({"project": owner, "name": template.name}, f"template {owner}/{template.name} is deleted")


def _read(file: str) -> dict[str, Any]:
    found = list(read_file(file))
    if len(found) != 1 or not isinstance(found[0][1], dict):
        raise Failure(f"{file}: this is one template: a mapping with name, parameters and workload", exit_code=USAGE)
    fields: dict[str, Any] = found[0][1]
    return fields


def _print(found: TemplateDetail, project: str) -> None:
    kept = ", ".join(map(str, found.versions))
    fields = {
        "Template": f"{_shown(found)}@{found.version}" + (" (shared)" if found.project == SHARED else ""),
        "About": found.description,
        "Versions": kept,
        "Changed": f"{ago(found.changed_ms)} by {found.changed_by}",
        "Use": _usage(found, project),
    }
    print_fields(fields, 12)
    if found.parameters:
        click.echo()
        print_table(PARAMETERS_HEADER, [_parameter_row(*item) for item in found.parameters.items()])
    import ryaml

    click.echo("\nWorkload:")
    text = printable_lines(ryaml.dumps(msgspec.to_builtins(found.workload)).rstrip())
    click.echo("\n".join(f"  {line}" for line in text.split("\n")))


def _usage(found: TemplateDetail, project: str) -> str:
    owner = found.project if found.project != SHARED else project
    where = "" if owner == DEFAULT_PROJECT else f" -p {owner}"
    needed = {name: parameter for name, parameter in found.parameters.items() if parameter.is_needed}
    values = "".join(
        f" -P {name}={'SECRET' if parameter.secret else SAMPLES[parameter.type]}" for name, parameter in needed.items()
    )
    return f"roost run{where} --template {found.name}{values}"


def _parameter_row(name: str, parameter: Parameter) -> tuple[str, ...]:
    default = "required" if parameter.is_needed else "-"
    if parameter.default is not msgspec.UNSET:
        default = msgspec.json.encode(parameter.default).decode()
    kind = "secret" if parameter.secret else parameter.type
    return name, kind, default, _rules(parameter) or "-", parameter.description or "-"


def _rules(parameter: Parameter) -> str:
    rules = []
    if parameter.enum:
        rules.append(", ".join(map(str, parameter.enum)))
    for low, high, unit in ((parameter.minimum, parameter.maximum, ""),
                            (parameter.min_length, parameter.max_length, " characters")):  # fmt: skip
        if low is not None or high is not None:
            bounds = f"{low} to {high}" if low is not None and high is not None else ""
            rules.append((bounds or (f"at least {low}" if low is not None else f"at most {high}")) + unit)
    if parameter.pattern:
        rules.append(f"matches {parameter.pattern}")
    return "; ".join(rules)


def _shown(found: TemplateView) -> str:
    return found.name if found.project == DEFAULT_PROJECT else f"{found.project}/{found.name}"


def _row(found: TemplateView) -> tuple[str, ...]:
    return _shown(found), str(found.version), ago(found.changed_ms), found.changed_by, found.description or "-"
