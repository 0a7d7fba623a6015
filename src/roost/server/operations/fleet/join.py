"""Joining: tokens for machines that are to become nodes, and the one endpoint that such a machine may use."""

from roost.model.errors import Invalid
from roost.model.records.enrolment import Credential, JoinRequest
from roost.model.spec.units import duration_ms
from roost.schema.access.enrolment import AuthorityView, Inviting, JoinTokenMade, JoinTokenPage
from roost.server.operations.context import Call
from roost.server.pki.enrolment import LIFE_MS_DEFAULT

UNLIMITED = "unlimited"


async def create_join_token(call: Call, asked: Inviting) -> JoinTokenMade:
    """Create a join token. The answer has its secret, once."""
    if isinstance(asked.uses, str) and asked.uses != UNLIMITED:
        raise Invalid("uses", f"this is a number or {UNLIMITED!r}, not {asked.uses!r:.60}")
    uses = None if isinstance(asked.uses, str) else asked.uses
    life_ms = LIFE_MS_DEFAULT if asked.expires is None else duration_ms(asked.expires, "expires")
    return await call.context.joining.create(asked.pool, uses, life_ms, call.principal.by)


async def list_join_tokens(call: Call) -> JoinTokenPage:
    """List join tokens, never their secrets."""
    return JoinTokenPage((await call.state()).revision, call.context.joining.listed())


async def revoke_join_token(call: Call, token: str) -> None:
    """Revoke a join token. Nodes that joined with it stay."""
    await call.context.joining.revoke(token, call.principal.by)


async def get_authority(call: Call) -> AuthorityView:
    """The certificate of the CA, for a machine that has its fingerprint."""
    authority = call.context.joining.certificates.authority
    return AuthorityView(authority.certificate, authority.fingerprint)


async def join(call: Call, asked: JoinRequest) -> Credential:
    """Enrol a node: the secret of a join token and a certificate request in, a certificate out."""
    return await call.context.joining.join(asked, call.principal.where)
