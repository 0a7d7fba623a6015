"""Secrets of projects: set, list, remove, seal again. A value comes in and never goes out by this door."""

import base64
import binascii

from roost.model.errors import Invalid, NotFound
from roost.model.events import WorkloadSpec
from roost.model.records.opaque import OpaqueRecord
from roost.model.spec.document import decode_document, may_have_secrets, secrets_in
from roost.schema.access.secrets import Resealed, SecretPage, SecretValue, SecretView
from roost.server.operations.context import Call
from roost.server.operations.parameters import PAGE_MAX, After, Limit, page_of
from roost.server.pki.secrets import KIND, check_key


async def list_secrets(call: Call, project: str, limit: Limit = PAGE_MAX, after: After = "") -> SecretPage:
    """List the secrets of a project: names, sizes, last change and author. Never values."""
    kept, secrets = await call.records(KIND), call.context.secrets
    keys, following = page_of(kept, limit, after, f"{project}/")
    return SecretPage(call.engine.state.revision, [secrets.view(key, kept[key]) for key in keys], following)


async def set_secret(call: Call, project: str, name: str, given: SecretValue) -> SecretView:
    """Set a secret of a project. New attempts get this value; running ones keep theirs."""
    key = f"{project}/{name}"
    check_key(key)
    secrets = call.context.secrets
    record = secrets.record(key, _bytes(given), call.principal.name)
    await call.put(record)
    assert record.value is not None
    return secrets.view(key, record.value)


async def remove_secret(call: Call, project: str, name: str) -> None:
    """Delete a secret. Running work keeps it; later attempts that need it fail to start."""
    key = f"{project}/{name}"
    known = (await call.records(KIND)).get(key)
    if known is None:
        raise NotFound(f"there is no secret {name:.100} in project {project:.100}")
    await call.put(OpaqueRecord(KIND, key, None, known))


async def reseal_secrets(call: Call) -> Resealed:
    """Encrypt the secrets of all projects again with the newest key. Afterwards older keys are not needed."""
    return await call.context.secrets.reseal(call.ask)


async def require_secrets(call: Call, wanted: tuple[WorkloadSpec, ...], *, many: bool = False) -> None:
    """Refuse workloads that refer to secrets which are not there. The caller may submit to these projects."""
    for number, spec in enumerate(wanted):
        if not may_have_secrets(spec.document):
            continue
        known = await call.records(KIND)
        for field, name in secrets_in(decode_document(spec.document)).items():
            if f"{spec.project}/{name}" not in known:
                message = f"project {spec.project} has no secret {name}; `roost secrets set {spec.project}/{name}`"
                raise Invalid(f"{f'[{number}].' if many else ''}{field:.80}", message, code="no_such_secret")


def _bytes(given: SecretValue) -> bytes:
    if (given.value is None) == (given.base64 is None):
        raise Invalid("value", "give either `value`, a text, or `base64`")
    if given.value is not None:
        try:
            return given.value.encode()
        except UnicodeEncodeError:
            raise Invalid("value", "this is not text that can be passed to a program; send `base64`") from None
    assert given.base64 is not None
    try:
        return base64.b64decode(given.base64, validate=True)
    except (binascii.Error, ValueError):
        raise Invalid("base64", "this is not base64") from None
