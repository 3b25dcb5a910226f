"""Encodes events as messages once for all sessions (Streamr protocol, message array).

Live messages go to many sessions at about the same time, so the last frames are kept and shared. Two fields are checked each
time: the predecessor, which must not be named once it is deleted, and the remaining lifetime. Events of things and policies
are encoded as items of their history.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from datetime import UTC, datetime
from typing import NamedTuple, TypeAlias

from connectivity.sessions.base import FOREVER, RetentionTimes
from connectivity.store.store import Store
from mappings.ids import EntityId, EntityType
from mappings.model.signals import Event
from mappings.streamr import events
from mappings.streamr.frames import FrameStyle, broadcast
from mappings.streamr.messages import StreamMessage, predecessor, write_message

KEPT = 1000
KEPT_BYTES = 8 << 20
"""The most frames, and bytes, that are kept; or one larger frame."""


_Key: TypeAlias = tuple[EntityId, int, int, str | None]


class _Written(NamedTuple):
    event: Event
    previous: int | None
    ttl: int
    frame: bytes


class MessageWriter:
    """Writes messages, and the frames that broadcast them."""

    def __init__(
        self,
        store: Store,
        lifetimes: RetentionTimes = FOREVER,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        kept: int = KEPT,
        kept_bytes: int = KEPT_BYTES,
    ) -> None:
        self._store = store
        self._lifetimes = lifetimes
        self._now = now
        self._kept, self._kept_bytes = kept, kept_bytes
        self._written: OrderedDict[_Key, _Written] = OrderedDict()
        self._bytes = 0

    def message(self, event: Event) -> StreamMessage:
        """The message that an event is, with the predecessor that a resend still brings.

        Raises StoreUnavailable.
        """
        return _message(event, *self._about(event))

    def broadcast(self, event: Event, style: FrameStyle) -> bytes:
        """Return the frame for an event: the same object for all sessions with this style.

        Raises StoreUnavailable.
        """
        previous, ttl = self._about(event)
        key = (event.entity, event.revision, style.version, style.filler)
        known = self._written.get(key)
        if known is not None:
            if known.event is event and (known.previous, known.ttl) == (previous, ttl):
                return known.frame
            del self._written[key]
            self._bytes -= len(known.frame)
        frame = broadcast(write_message(_message(event, previous, ttl), style.version), style)
        self._keep(key, _Written(event, previous, ttl, frame))
        return frame

    def _keep(self, key: _Key, written: _Written) -> None:
        self._written[key] = written
        self._bytes += len(written.frame)
        while len(self._written) > self._kept or (self._bytes > self._kept_bytes and len(self._written) > 1):
            _, gone = self._written.popitem(last=False)
            self._bytes -= len(gone.frame)

    def _about(self, event: Event) -> tuple[int | None, int]:
        """Return the predecessor of a message, and its remaining lifetime."""
        previous = predecessor(event.revision - 1, self._store.oldest_kept(event.entity))
        if self._lifetimes.is_forever:
            return previous, 0
        return previous, self._lifetimes.left(event, int(self._now().timestamp() * 1000))


def _message(event: Event, previous: int | None, ttl: int) -> StreamMessage:
    of = events.message_of if event.entity.type is EntityType.STREAM else events.twin_message_of
    return of(event, previous=previous, ttl=ttl)
