"""Where an operation is performed: here, or by the leader. One place for permissions and for what errors may tell."""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar, cast

from roost.model.errors import RoostError
from roost.schema.reason_text import error_message, error_params
from roost.server.auth.principal import Principal
from roost.server.operations.codec import codec_of
from roost.server.operations.context import Call, Context
from roost.server.operations.permit import Scope, permit
from roost.server.operations.table import RULES

if TYPE_CHECKING:  # it performs forwarded operations, so it imports these
    from roost.server.cluster.forwarding import Forwarder

P = ParamSpec("P")
Answer = TypeVar("Answer")


class Dispatcher:
    """Performs operations. `forwarder`: the connection to the leader, where there may be several servers."""

    def __init__(self, context: Context, forwarder: "Forwarder | None" = None) -> None:
        self.context = context
        self._forwarder = forwarder

    async def perform(
        self,
        principal: Principal,
        operation: Callable[Concatenate[Call, P], Awaitable[Answer]],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Answer:
        rule = RULES[operation]
        with redacted(principal):
            permit(principal, rule, str(args[0]) if rule.scope is Scope.PROJECT else "")
            forwarder = self._forwarder
            if not (rule.leader and forwarder and not self.context.engine.ready and await forwarder.leader()):
                return await operation(Call(self.context, principal), *args, **kwargs)
            codec = codec_of(operation)
            arguments = codec.pack(args, kwargs)
            if codec.streams:
                return cast(Answer, codec.items(await forwarder.stream(operation.__name__, arguments, principal)))
            return cast(Answer, codec.answer(await forwarder.call(operation.__name__, arguments, principal)))


@contextmanager
def redacted(principal: Principal) -> Iterator[None]:
    """Hide the names of other projects' work in errors: a stale plan says what has changed."""
    try:
        yield
    except RoostError as error:
        visible = None if principal.access.sees_all else principal.access.sees
        error.message, error.params = error_message(error, visible), error_params(error, visible)
        error.reason, error.text = None, ()
        raise
