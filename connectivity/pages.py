"""Pages of a search: what a thing looks like in one, and which things share one (Ditto protocol, search, next).

A page is a JSON array. It has as many things as the client has asked for, unless they are too large together; it is never
empty.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from connectivity.twins.retrieval import shortened
from mappings.selection import Selection, select
from spark_store.asking import Hit

_TIMES: Final = ("_created", "_modified")
_encode: Final = msgspec.json.Encoder().encode


def item(hit: Hit, selection: Selection | None) -> bytes:
    """A thing as a page has it: those fields of it that were selected, or its document without the fields beside it."""
    if selection is None and hit.text is not None:
        return hit.text
    thing = hit.thing
    if selection is None:
        return _encode({name: value for name, value in thing.items() if name[:1] != "_"})
    found: dict[str, Any] = {**thing, "_namespace": hit.thing_id.partition(":")[0]}
    for name in _TIMES:
        if name in selection and name in found:
            found[name] = shortened(found[name])
    return _encode(select(found, selection))


class Pages:
    """Things on their way into pages of `size` things and at most `max_bytes`."""

    __slots__ = ("_items", "_left", "_max_bytes", "done", "size")

    def __init__(self, size: int, max_bytes: int) -> None:
        self.size = size
        self.done: list[bytes] = []
        """The pages that are complete."""
        self._items: list[bytes] = []
        self._max_bytes = self._left = max_bytes

    @property
    def missing(self) -> int:
        """How many things the page that is being filled still takes."""
        return self.size - len(self._items)

    @property
    def left(self) -> int:
        """How many bytes it still takes."""
        return max(1, self._left)

    @property
    def is_open(self) -> bool:
        """Whether a page has been begun and not ended."""
        return bool(self._items)

    def add(self, item: bytes) -> None:
        self._items.append(item)
        self._left -= len(item) + 1
        if len(self._items) == self.size:
            self.end()

    def end_if_heavy(self) -> None:
        """End a page that has half of its bytes: what follows may be as large."""
        if self._left <= self._max_bytes // 2:
            self.end()

    def end(self) -> None:
        """The page is complete with what it has, if that is anything."""
        if self._items:
            self.done.append(b"[%b]" % b",".join(self._items))
            self._items = []
            self._left = self._max_bytes
