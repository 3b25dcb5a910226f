"""Commands on things and policies: what each comes to, and what it changes, staged for the commit of its batch.

A command is decided upon what those before it have decided, durable or not, and its answer may be told when all of that is
durable. One that is known, because it has come before, is answered from the store and changes nothing. Whoever brings it
says who has sent it, and what names it (`Sender`); how it is answered is his business too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import structlog

from connectivity.dispatch.effects import Told, answer_bytes, stored_answer
from connectivity.errors import TwinError
from connectivity.monitoring.log_context import log_context
from connectivity.sources.acknowledgements import BUILT_IN
from connectivity.sources.delivery import InboundDelivery
from connectivity.store.store import Store
from connectivity.twins.decider import Decider
from mappings.errors import INTERNAL_ERROR
from mappings.model.headers import FIELDS, essential
from mappings.model.signals import Command, ErrorResponse, Headers, PolicyAnnouncement
from spark_store.errors import StoreUnavailable
from spark_store.records import Change, DeliveryName, EventCause, StoredAnswer

log = structlog.get_logger(__name__)


_OF_COMMANDS: Final = frozenset(row.name for row in FIELDS.values() if not row.is_written) | {
    "content-type",
    "entity-revision",
    "etag",
    "reply-to",
    "requested-acks",
    "response-required",
    "timeout",
    "version",
    "idempotency-key",
    "ditto-originator",
}


def cause_of(headers: Headers, labels: Sequence[str], connection_id: str, subjects: Sequence[str]) -> EventCause:
    """The cause of the events of a command with these headers, which asks for these acknowledgements."""
    kept: dict[str, Any] = {name: value for name, value in headers.items() if name not in _OF_COMMANDS}
    if foreign := foreign_labels(labels):
        kept["requested-acks"] = foreign
    if subjects:
        kept["ditto-originator"] = subjects[0]
    return EventCause(connection_id, kept)


def foreign_labels(labels: Sequence[str]) -> list[str]:
    """The labels that the service does not answer itself."""
    return [label for label in labels if label not in BUILT_IN]


_HEADERS_TOO_LARGE = 431


class Sender(NamedTuple):
    """By which delivery a command came, and whom it speaks for.

    `name` is what names it across redeliveries, `is_asked` whether it may have come before, `labels` are the
    acknowledgements that it asks for.
    """

    arrival: InboundDelivery
    subjects: tuple[str, ...]
    name: DeliveryName | None
    is_asked: bool
    labels: Sequence[str] = ()


class CommandHandler:
    """Carries out commands."""

    def __init__(self, store: Store, decider: Decider, is_followed: Callable[[], bool]) -> None:
        """`is_followed`: whether anybody wants to know what has caused an event."""
        self._store = store
        self._decider = decider
        self._is_followed = is_followed
        self._announced: list[PolicyAnnouncement] = []

    def announced(self) -> Sequence[PolicyAnnouncement]:
        """What was carried out since this was asked last announces, once it is durable."""
        announced, self._announced = self._announced, []
        return announced

    def carry_out(self, command: Command, sender: Sender, changes: list[Change]) -> Told:
        """What a command comes to; what it changes is staged, and appended to the changes. Raises StoreUnavailable."""
        arrival, subjects, name, is_asked, labels = sender
        if name is not None and is_asked and (known := self._store.answered(name)) is not None:
            arrival.route.meter.inbound("answered_again")
            return stored_answer(known, command)
        answer: StoredAnswer | None = None
        try:
            decision = self._decider.decide(command, subjects)
            if decision.events and name is not None:
                answer = StoredAnswer(name, answer_bytes(decision.response, command))
        except TwinError as refused:
            headers = essential(command.headers) if refused.fault.status == _HEADERS_TOO_LARGE else command.headers
            return ErrorResponse(command.entity, refused.group, refused.fault, headers)
        except StoreUnavailable:
            raise
        except Exception:
            log.exception(
                "a command could not be decided",
                connection=arrival.route.connection_id,
                source=arrival.route.index,
                address=arrival.delivery.address,
                path=command.path,
                **log_context(command.headers),
            )
            return ErrorResponse(command.entity, command.entity.type.group, INTERNAL_ERROR, command.headers)
        if decision.events:
            is_told = self._is_followed()
            cause = cause_of(command.headers, labels, arrival.route.connection_id, subjects) if is_told else None
            change = Change(decision.events, decision.snapshots, answer, cause)
            self._store.stage(change)
            changes.append(change)
            self._announced += decision.announcements
        return decision.response
