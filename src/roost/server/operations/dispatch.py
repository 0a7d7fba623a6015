"""Where an operation is performed: here, or by the leader."""

from collections.abc import Awaitable, Callable
from typing import Concatenate, ParamSpec, TypeVar, cast

from roost.model.errors import Forbidden
from roost.server.auth.principal import Principal
from roost.server.cluster.forwarding import Forwarder
from roost.server.operations.context import Call, Context
from roost.server.operations.permit import Scope, permit, redacted
from roost.server.operations.table import RULES

P = ParamSpec("P")
Answer = TypeVar("Answer")


class Dispatcher:
    """Performs operations. `forwarder`: the connection to the leader, where there may be several servers."""

    def __init__(self, context: Context, forwarder: Forwarder | None = None) -> None:
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
        project = str(args[0]) if rule.scope is Scope.PROJECT else ""
        try:
            with redacted(principal):
                permit(principal, rule, project)
                forwarder = self._forwarder
                if rule.leader and forwarder and not self.context.engine.ready and await forwarder.leader():
                    return cast(Answer, await forwarder.perform(principal, operation, args, kwargs))
                return await operation(Call(self.context, principal), *args, **kwargs)
        except Forbidden as error:
            self.context.note(principal, operation.__name__, project, error.message, refused=True)
            raise
