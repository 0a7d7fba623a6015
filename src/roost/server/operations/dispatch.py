"""Where an operation is performed: here, or by the leader. One place for permissions and for what errors may tell."""

import contextlib
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, cast

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
    """Performs operations. `leader`: the connection to it, where there may be several servers."""

    def __init__(self, context: Context, leader: "Forwarder | None" = None) -> None:
        self.context = context
        self._leader = leader

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
            if rule.leader and self._leader is not None and not self.context.engine.ready:
                if await self._leader.is_elsewhere():
                    return cast(Answer, await self._forward(self._leader, principal, operation, args, kwargs))
            return await operation(Call(self.context, principal), *args, **kwargs)

    async def _forward(
        self,
        leader: "Forwarder",
        principal: Principal,
        operation: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        codec = codec_of(operation)
        arguments = codec.pack(args, kwargs)
        if codec.streams:
            return codec.items(await leader.stream(operation.__name__, arguments, principal))
        return codec.answer(await leader.call(operation.__name__, arguments, principal))


@contextlib.contextmanager
def redacted(principal: Principal) -> Iterator[None]:
    """Hide the names of other projects' work in errors: a stale plan says what has changed."""
    try:
        yield
    except RoostError as error:
        visible = None if principal.access.sees_all else principal.access.sees
        error.message, error.params = error_message(error, visible), error_params(error, visible)
        error.reason, error.text = None, ()
        raise
