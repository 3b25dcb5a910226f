"""Encodes events as broadcast frames once for all sessions (Streamr protocol, message array).

Live messages go to many sessions at about the same time, so the last frames are kept and shared. Two fields are checked each
time: the predecessor, which must not be named once it is deleted, and the remaining lifetime. Events of things and policies
are encoded as items of their history.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple, TypeAlias

from connectivity.sessions.stream_source import StreamSource
from mappings.ids import EntityId
from mappings.model.signals import Event
from mappings.streamr.frames import FrameStyle, broadcast
from mappings.streams.entry import encode_entry, entry_of

MAX_FRAMES = 1000
MAX_BYTES = 8 << 20
"""The most frames, and bytes, that are kept; or one larger frame."""

_Key: TypeAlias = tuple[EntityId, int, int, str | None]


class _CachedFrame(NamedTuple):
    event: Event
    previous: int | None
    ttl: int
    frame: bytes


class FrameCache:
    """Encodes frames, and keeps the last ones."""

    def __init__(self, source: StreamSource, max_frames: int = MAX_FRAMES, max_bytes: int = MAX_BYTES) -> None:
        self.source = source
        self._max_frames, self._max_bytes = max_frames, max_bytes
        self._frames: OrderedDict[_Key, _CachedFrame] = OrderedDict()
        self._bytes = 0

    def broadcast(self, event: Event, style: FrameStyle) -> bytes:
        """Return the frame for an event: the same object for all sessions with this style.

        Raises StoreUnavailable.
        """
        previous, ttl = self.source.position(event)
        key = (event.entity, event.revision, style.version, style.filler)
        known = self._frames.get(key)
        if known is not None:
            if known.event is event and (known.previous, known.ttl) == (previous, ttl):
                return known.frame
            del self._frames[key]
            self._bytes -= len(known.frame)
        frame = broadcast(encode_entry(entry_of(event, previous=previous, ttl=ttl), style.version), style)
        self._keep(key, _CachedFrame(event, previous, ttl, frame))
        return frame

    def _keep(self, key: _Key, cached: _CachedFrame) -> None:
        self._frames[key] = cached
        self._bytes += len(cached.frame)
        while len(self._frames) > self._max_frames or (self._bytes > self._max_bytes and len(self._frames) > 1):
            _, oldest = self._frames.popitem(last=False)
            self._bytes -= len(oldest.frame)
