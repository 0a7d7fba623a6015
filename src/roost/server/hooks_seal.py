"""Signing secrets of hooks under the newest key: sealed again together with the secrets of projects."""

from msgspec.structs import replace

from roost.model.errors import Conflict
from roost.model.events import Keep
from roost.model.kept import Kept
from roost.server.engine import Engine
from roost.server.hooks import KIND, bound, decode_hook, encode_hook
from roost.server.seal import Seal, Unsealable
from roost.server.secrets import Ask, Resealed

PASSES_MAX = 3  # over what others change meanwhile


async def reseal_hooks(engine: Engine, seal: Seal, ask: Ask) -> Resealed:
    """Seal what an older key has sealed. There are 200 hooks at most: one commit."""
    for _ in range(PASSES_MAX):
        state = await engine.settled()
        again: list[Kept] = []
        unreadable: list[str] = []
        for key, record in sorted(state.kept.get(KIND, {}).items()):
            hook = decode_hook(record)
            if not hook.sealed or seal.is_newest(hook.sealed):
                continue
            try:
                secret = seal.open(bound(key), hook.sealed)
            except Unsealable:
                unreadable.append(bound(key))
                continue
            again.append(Kept(KIND, key, encode_hook(replace(hook, sealed=seal.seal(bound(key), secret))), record))
        try:
            if again:
                await ask(lambda request, records=tuple(again): Keep(request, records))  # type: ignore[misc]
        except Conflict:
            continue
        return Resealed(len(again), unreadable)
    raise Conflict("hooks are being changed; ask again, what was sealed again stays so", code="busy")
