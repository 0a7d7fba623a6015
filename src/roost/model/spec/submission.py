"""From what a user wrote to what the core is asked for: checked, and the values of elements set apart."""

from roost.model.errors import Invalid
from roost.model.events import WorkloadSpec
from roost.model.spec.dependencies import Values, values_of
from roost.model.spec.document import Document, check_document, encode_document, read_document
from roost.model.spec.problems import Problems
from roost.model.states import WorkloadKind


def spec_of_document(raw: object, path: str = "", *, is_rendered: bool = False) -> WorkloadSpec:
    """`is_rendered`: its template was put in; `template` says which one it was."""
    document = read_document(raw, path)
    if document.template is not None and not is_rendered:
        raise Invalid(f"{path}.template" if path else "template", "only a server has templates: submit it, or plan it")
    problems = Problems()
    values = problems.check(take_values, document, f"{path}." if path else "")
    policy = problems.check(check_document, document, path)
    problems.refuse()
    return WorkloadSpec(
        document.project, document.name, document.count, policy, encode_document(document, path), values
    )


def take_values(document: Document, prefix: str = "") -> Values:
    """The values of an array's elements, which are stored beside the document: its count is theirs."""
    if document.each is None:
        return ()
    values = values_of(document.each, f"{prefix}each")
    if document.kind != WorkloadKind.JOB:
        raise Invalid(f"{prefix}each", f"only the elements of a job have values, not a {document.kind}")
    if document.count not in (1, len(values)):
        raise Invalid(f"{prefix}count", f"`each` has {len(values):,} elements; leave the count out")
    document.count, document.each = len(values), None
    return values
