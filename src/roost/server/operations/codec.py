"""Arguments and answers of an operation as bytes, for servers that forward it to the leader."""

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from functools import lru_cache
from inspect import signature
from typing import Any, NamedTuple, get_args, get_origin, get_type_hints

import msgspec

from roost.model.errors import Unreadable


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
