"""Events as the messages that sessions are sent, written once for all of them (Streamr protocol, message array).

What is sent live goes to many at about the same time, so the bytes of the last messages are kept. What else than the event
stands in a message is looked at each time: its predecessor, which may not be named any more once it is gone, and how long it
will be there itself. The events of things and policies are written as items of their history are.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from datetime import datetime
from typing import NamedTuple

from connectivity.lifetimes import Lifetimes
from connectivity.store import Store
from mappings.ids import EntityId, EntityType
from mappings.signals import Event
from mappings.streamr import entries, twins
from mappings.streamr.messages import StreamMessage, predecessor, write_message

KEPT = 1000
"""So many written messages are kept."""


class _Written(NamedTuple):
    event: Event
    previous: int | None
    ttl: int
    message: bytes


class Writing:
    """Writes messages."""

    def __init__(self, store: Store, lifetimes: Lifetimes, now: Callable[[], datetime], kept: int = KEPT) -> None:
        self._store = store
        self._lifetimes = lifetimes
        self._now = now
        self._kept = kept
        self._written: OrderedDict[tuple[EntityId, int, int], _Written] = OrderedDict()

    def message(self, event: Event) -> StreamMessage:
        """The message that an event is, with the predecessor that a resend still brings. Raises StoreUnavailable."""
        return _message(event, *self._about(event))

    def written(self, event: Event, version: int) -> bytes:
        """The same as an array, in one of the protocol's versions."""
        previous, ttl = self._about(event)
        key = (event.entity, event.revision, version)
        known = self._written.get(key)
        if known is not None and known.event is event and (known.previous, known.ttl) == (previous, ttl):
            return known.message
        message = write_message(_message(event, previous, ttl), version)
        self._written[key] = _Written(event, previous, ttl, message)
        if len(self._written) > self._kept:
            self._written.popitem(last=False)
        return message

    def _about(self, event: Event) -> tuple[int | None, int]:
        """What else than the event stands in its message: the predecessor, and the time that is left to it."""
        previous = predecessor(event.revision - 1, self._store.oldest_kept(event.entity))
        if self._lifetimes.is_forever:
            return previous, 0
        return previous, self._lifetimes.left(event, int(self._now().timestamp() * 1000))


def _message(event: Event, previous: int | None, ttl: int) -> StreamMessage:
    of = entries.message_of if event.entity.type is EntityType.STREAM else twins.message_of
    return of(event, previous=previous, ttl=ttl)
