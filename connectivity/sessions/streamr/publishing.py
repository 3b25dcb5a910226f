"""Publishes messages to streams (Streamr protocol, publish).

A message is the next event of its partition, stored with its batch; there is no reply, and subscribers receive it when it is
durable. The name of the delivery is stored in the same commit, so that a redelivered message is not appended again. The
`idempotency-key` of a request, or else its `correlation-id`, identifies a message in its session for five minutes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any

import msgspec

from connectivity.sessions.base import SessionCommand
from connectivity.sessions.streamr.reply_channel import StreamrReplyChannel
from connectivity.sources.delivery import DeduplicationKey
from connectivity.store.store import Store
from connectivity.transports.base import Done
from connectivity.twins.access import StreamPermission
from mappings.ids import EntityId, new_correlation_id
from mappings.mappers import load_codec
from mappings.model.signals import ErrorResponse, Headers, Response
from mappings.streamr.errors import ErrorSubject
from mappings.streamr.events import command_of, event_of
from mappings.streamr.frames import error_of
from mappings.streamr.requests import Publish
from mappings.streamr.streams import KeyHash, partition_of, partition_of_key
from mappings.streamr.timestamps import timestamp
from spark_store.history.replay import evolve
from spark_store.records import Change, DeliveryName, StoredAnswer

NAMED_SECONDS = 300
"""How long a client's name identifies its message."""


class StreamPublisher:
    """Appends messages."""

    def __init__(self, store: Store, now: Callable[[], datetime]) -> None:
        self._store = store
        self._now = now

    def is_known(self, name: DeliveryName, *, is_chosen: bool) -> bool:
        """Whether the message with this name was appended before.

        `is_chosen`: the client chose the name. Raises StoreUnavailable.
        """
        answer = self._store.answered(name)
        if answer is None:
            return False
        taken: float = msgspec.msgpack.decode(answer, type=float)
        return not is_chosen or self._now().timestamp() - taken < NAMED_SECONDS

    def append(
        self, request: Publish, partitions: int, hash: KeyHash, name: DeliveryName | None, changes: list[Change]
    ) -> None:
        """Stage a message for one of so many partitions, and add it to its batch.

        Raises StoreUnavailable.
        """
        partition = partition_of_key(request.key, partitions, hash)
        entity = partition_of(request.stream, partition)
        before = self._store.snapshot(entity)
        moment = self._now().timestamp()
        now = timestamp(int(moment * 1000))
        if before is not None:
            # Histories are in order of time, whatever the clock does.
            now = max(now, before.modified)
        event = event_of(request, partition, 1 if before is None else before.revision + 1, now)
        answer = StoredAnswer(name, msgspec.msgpack.encode(moment)) if name is not None else None
        change = Change((event,), (evolve(before, event),), answer)
        self._store.stage(change)
        changes.append(change)


_UNANSWERABLE = frozenset({"requested-acks", "response-required", "reply-to", "live-channel-condition"})
"""The headers of a command that concern responses."""

_CORRELATION_ID = "correlation-id"


def errand_of(
    request: Publish,
    entity: EntityId,
    permit: StreamPermission,
    headers: Headers,
    named: DeduplicationKey,
    line: StreamrReplyChannel | None,
) -> SessionCommand:
    """The command that is published to a twin. `headers` are those of the request. Raises RequestRefused."""
    read = partial(load_codec("Ditto").decode, session=None)
    command = command_of(request, entity, read)
    own = {name: value for name, value in command.headers.items() if name not in _UNANSWERABLE}
    completed: Mapping[str, Any] = {
        **own,
        _CORRELATION_ID: own.get(_CORRELATION_ID) or headers.get(_CORRELATION_ID) or new_correlation_id(),
        "ditto-originator": permit.subjects[0],
        "response-required": False,
    }
    return SessionCommand(
        replace(command, headers=completed), permit.subjects, _own(named), partial(_told, request, line)
    )


def _own(named: DeduplicationKey) -> DeduplicationKey:
    """Return a separate key for a client's name: messages have another kind of stored answer."""
    if named.name is None or not named.is_chosen:
        return named
    return named._replace(name=named.name._replace(name=f"{named.name.name}:command"))


def _told(request: Publish, line: StreamrReplyChannel | None, answer: Response | ErrorResponse, ended: Done) -> None:
    """Return the error of a command as a frame; a success has no reply."""
    if line is None or not isinstance(answer, ErrorResponse):
        ended(None)
    else:
        line.say(error_of(answer.fault, ErrorSubject(request.stream), line.correlation_id), ended)
