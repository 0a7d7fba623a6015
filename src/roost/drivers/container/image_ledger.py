"""Which images of a node are ours, and who uses them. No clock, no I/O: image_cache.py drives it."""

from collections.abc import Callable

import msgspec

OURS_MAX = 1_000  # remembered, 200 bytes each; the oldest are forgotten, and stay


class OwnImage(msgspec.Struct):
    """`names`: how documents called it."""

    names: list[str]
    used_at: float  # seconds since 1970


class ImageLedger:
    def __init__(self, ours: dict[str, OwnImage]) -> None:
        self.ours = ours
        self._in_use: dict[int, str] = {}  # attempts, and the images they were given

    def used(self, token: int, id: str, name: str, now_s: float, *, is_ours: bool) -> bool:
        """An attempt is given an image; `is_ours`: it was fetched for it, and was not here before.

        True: that changes what is to be remembered.
        """
        self._in_use[token] = id
        own = self.ours.get(id)
        if own is None and not is_ours:
            return False
        names = own.names if own is not None else []
        self.ours[id] = OwnImage([*names, *({name} - set(names))], now_s)
        while len(self.ours) > OURS_MAX:
            del self.ours[min(self.ours, key=lambda id: self.ours[id].used_at)]
        return True

    def removable(self, is_live: Callable[[int], bool]) -> list[str]:
        """Images of ours that no live attempt was given, the longest unused first."""
        self._in_use = {token: id for token, id in self._in_use.items() if is_live(token)}
        used = set(self._in_use.values())
        return [id for id in sorted(self.ours, key=lambda id: self.ours[id].used_at) if id not in used]
