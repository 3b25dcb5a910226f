"""Executes commands on things and policies, and stages their changes for the commit of their batch.

A command is decided on the results of those before it, durable or not; its response may be sent once all of them are
durable. A redelivered command gets its stored response and changes nothing. The caller supplies the sender and the
deduplication key (`Sender`), and sends the response.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec
import structlog

from connectivity.dispatch.effects import (
    Batch,
    CommandResponse,
    decode_response,
    encode_response,
    internal_error_of,
    log_fields,
)
from connectivity.dispatch.quota_check import QuotaCheck
from connectivity.errors import TwinError
from connectivity.sources.acknowledgements import BUILT_IN
from connectivity.sources.deduplication import DeduplicationKey
from connectivity.sources.delivery import InboundDelivery
from connectivity.store.store import Store
from connectivity.twins.decider import Decider
from mappings.ids import EntityId, EntityType
from mappings.model.headers import FIELDS, address_headers
from mappings.model.signals import Command, ErrorResponse, Headers
from spark_store.errors import StoreUnavailable
from spark_store.history.replay import state_text
from spark_store.records import Change, EventCause, StoredAnswer

log = structlog.get_logger(__name__)

_COMMAND_HEADERS: Final = frozenset(row.name for row in FIELDS.values() if not row.is_written) | {
    "content-type",
    "entity-revision",
    "etag",
    "reply-to",
    "requested-acks",
    "response-required",
    "version",
    "idempotency-key",
    "ditto-originator",
}


def cause_of(headers: Headers, labels: Sequence[str], connection_id: str, subjects: Sequence[str]) -> EventCause:
    """Return the cause of a command's events, with its other headers and the labels of others."""
    causing_headers: dict[str, Any] = {name: value for name, value in headers.items() if name not in _COMMAND_HEADERS}
    if foreign := foreign_labels(labels):
        causing_headers["requested-acks"] = foreign
    if subjects:
        causing_headers["ditto-originator"] = subjects[0]
    return EventCause(connection_id, causing_headers)


def foreign_labels(labels: Sequence[str]) -> list[str]:
    """Return the labels that the service does not answer itself."""
    return [label for label in labels if label not in BUILT_IN]


_HEADERS_TOO_LARGE = 431


def refusal_of(command: Command, refused: TwinError) -> ErrorResponse:
    """Return the error response to a refused command."""
    headers = address_headers(command.headers) if refused.fault.status == _HEADERS_TOO_LARGE else command.headers
    if refused.etag is not None:
        headers = {**headers, "etag": refused.etag}
    return ErrorResponse(command.entity, refused.group, refused.fault, headers)


class Sender(msgspec.Struct, frozen=True):
    """The delivery of a command, and the subjects that it is executed for.

    `key` identifies the command across redeliveries, `labels` are the acknowledgements that it requests.
    """

    arrival: InboundDelivery
    subjects: tuple[str, ...]
    key: DeduplicationKey
    labels: Sequence[str] = ()


class CommandExecutor:
    """Executes commands."""

    def __init__(
        self, store: Store, decider: Decider, is_followed: Callable[[], bool], quota_check: QuotaCheck
    ) -> None:
        """`is_followed`: whether any target needs the causes of events."""
        self._store = store
        self._decider = decider
        self._quota_check = quota_check
        self._is_followed = is_followed

    def execute(self, command: Command, sender: Sender, batch: Batch) -> CommandResponse:
        """Return a command's response; stage its change and add it to the batch. Raises StoreUnavailable."""
        arrival, subjects, name = sender.arrival, sender.subjects, sender.key.name
        # Asked here, too, because most commands cannot be repeated, and need no call then.
        if sender.key.may_be_repeated and (stored := sender.key.stored_answer(self._store)) is not None:
            arrival.route.meter.inbound("answered_again")
            return decode_response(stored, command)
        answer: StoredAnswer | None = None
        undo: Callable[[], None] | None = None
        try:
            decision = self._decider.decide(command, subjects)
            if decision.events:
                if self._quota_check.bounds_changes or decision.events[0].action == "created":
                    undo = self._quota_check.admit(command, decision, subjects[0])
                if name is not None:
                    answer = StoredAnswer(name, encode_response(decision.response, command))
        except TwinError as refused:
            return refusal_of(command, refused)
        except StoreUnavailable:
            raise
        except Exception:
            log.exception("command failed", path=command.path, **log_fields(arrival, command.headers))
            return internal_error_of(command)
        if decision.events:
            needs_cause = self._is_followed()
            cause = (
                cause_of(command.headers, sender.labels, arrival.route.connection_id, subjects) if needs_cause else None
            )
            if cause is not None and decision.events[-1].is_deletion:
                cause = cause._replace(last=self._last_state(command.entity))
            creator = subjects[0] if undo is not None else None
            permissions, is_reference = decision.permissions, decision.is_reference
            change = Change(decision.events, decision.snapshots, answer, cause, permissions, creator, is_reference)
            self._store.commits.stage(change)
            batch.changes.append(change)
            if undo is not None:
                batch.undo.append(undo)
            batch.announcements += decision.announcements
        return decision.response

    def _last_state(self, entity: EntityId) -> bytes | None:
        """Return the state of a thing before its deletion, for the extra fields of targets."""
        before = self._store.snapshot(entity) if entity.type is EntityType.THING else None
        return state_text(before) if before is not None else None
