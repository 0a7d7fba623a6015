"""Where an operation is performed: here, or by the leader. One place for permissions and for what errors may tell."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import aclosing, contextmanager
from functools import lru_cache
from inspect import signature
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    NamedTuple,
    ParamSpec,
    TypeVar,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

import msgspec

from roost.model.errors import RoostError, Unreadable
from roost.schema.reason_text import error_message, error_params
from roost.server.auth.principal import Principal
from roost.server.operations.context import Call, Context
from roost.server.operations.permit import Scope, permit
from roost.server.operations.table import RULES


class Codec(NamedTuple):
    """How one operation is forwarded. `streams`: it answers with many items."""

    arguments: type[msgspec.Struct]
    reply: Any
    streams: bool

    def pack(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
        try:
            return msgspec.msgpack.encode(self.arguments(*args, **kwargs))
        except (OverflowError, ValueError):
            raise Unreadable("this has a number or a text that no document can have") from None

    def unpack(self, data: bytes) -> dict[str, Any]:
        try:
            made = msgspec.msgpack.decode(data, type=self.arguments)
        except msgspec.DecodeError as error:
            raise Unreadable(f"another server has sent arguments that cannot be read: {error}") from None
        return {name: getattr(made, name) for name in made.__struct_fields__}

    def answer(self, data: bytes) -> Any:
        return msgspec.msgpack.decode(data, type=self.reply)

    async def items(self, source: AsyncGenerator[bytes, None]) -> AsyncGenerator[Any, None]:
        async with aclosing(source):
            async for data in source:
                yield self.answer(data)


@lru_cache(maxsize=256)  # as many as there are operations
def codec_of(operation: Callable[..., Any]) -> Codec:
    hints = get_type_hints(operation, include_extras=True)
    fields: list[Any] = []
    for name, parameter in list(signature(operation).parameters.items())[1:]:
        field = (name, hints[name])
        fields.append(field if parameter.default is parameter.empty else (*field, parameter.default))
    reply, streams = hints["return"], False
    if get_origin(reply) is AsyncGenerator:
        reply, streams = get_args(reply)[0], True
    return Codec(msgspec.defstruct(f"{operation.__name__}_arguments", fields), reply, streams)


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
