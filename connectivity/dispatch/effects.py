"""Signal handlers, and the effects that they return.

Effects are carried out in order once the changes of their batch are durable. There are three effects: `RespondEffect` sends
a response, `ForwardEffect` sends something to other connections, and `SessionEffect` sends a session handler's reply.
Responses for redeliveries are encoded here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

import msgspec

from connectivity.dispatch.pending import PendingRequest
from connectivity.monitoring.logs import log_context
from connectivity.sessions.base import SessionReply
from connectivity.sources.delivery import InboundDelivery
from connectivity.sources.reader import ReceivedSignal
from connectivity.targets.reply_target import ReplyTargetPublisher
from connectivity.twins.retrieval import SeveralThings
from mappings.errors import INTERNAL_ERROR
from mappings.ids import group_of
from mappings.model.signals import (
    Cancel,
    Command,
    ErrorResponse,
    Headers,
    Inbound,
    PolicyAnnouncement,
    Request,
    Response,
    SessionMessage,
    Subscribe,
)
from spark_store.records import Change

CommandResponse: TypeAlias = Response | ErrorResponse


class RespondEffect(NamedTuple):
    """A response to be sent by `route`, or to be added to the acknowledgements of `pending`.

    `several`: the things that it lacks yet.
    """

    arrival: InboundDelivery
    response: CommandResponse
    route: ReplyTargetPublisher
    pending: PendingRequest | None = None
    several: SeveralThings | None = None


class ForwardEffect(NamedTuple):
    """A signal with these headers to be forwarded by `forward`; `pending` waits for its responses."""

    arrival: InboundDelivery
    forward: Callable[[], None]
    headers: Headers
    pending: PendingRequest | None = None


class SessionEffect(NamedTuple):
    """A session handler's reply to a request: `reply` gets the error if the request was not stored."""

    arrival: InboundDelivery
    reply: SessionReply
    headers: Headers
    pending: None = None


Effect: TypeAlias = RespondEffect | ForwardEffect | SessionEffect


class Batch(msgspec.Struct, eq=False):
    """The results of one batch so far: staged changes, effects, announcements of policies.

    `undo` is called if the changes cannot be stored.
    """

    changes: list[Change] = []
    effects: list[Effect] = []
    announcements: list[PolicyAnnouncement] = []
    undo: list[Callable[[], None]] = []


class SignalHandler(Protocol):
    """Processes the signals of some types."""

    @property
    def signals(self) -> tuple[type, ...]:
        """The types, exactly."""

    @property
    def has_side_effects(self) -> bool:
        """Whether `handle` changes or sends something itself, which a retry would repeat.

        For one of several signals in a delivery, the call itself is then an effect.
        """

    def handle(
        self, signal: Any, received_signal: ReceivedSignal, arrival: InboundDelivery, batch: Batch
    ) -> Sequence[Effect]:
        """Process a signal, stage its changes in the store, and return the effects.

        Without effects its delivery is settled once the links have taken what was sent before. Raises StoreUnavailable if
        the delivery has to be retried.
        """


def encode_response(response: Response, command: Command) -> bytes:
    """Encode a response for the store, without the headers that it has from the command."""
    asked = command.headers
    own = {name: value for name, value in response.headers.items() if asked.get(name) != value}
    return msgspec.msgpack.encode((response.action, response.path, response.status, response.value, own))


def decode_response(known: bytes, command: Command) -> Response:
    """Decode a stored response, as the response to this redelivery of the command."""
    action, path, status, value, own = msgspec.msgpack.decode(
        known, type=tuple[str, str, int, bytes | None, dict[str, Any]]
    )
    return Response(command.entity, action, path, status, value, {**command.headers, **own})


def internal_error(answer: CommandResponse) -> ErrorResponse:
    """Return the error response that replaces a response after an internal error."""
    return ErrorResponse(answer.entity, group_of(answer.entity), INTERNAL_ERROR, answer.headers)


def internal_error_of(signal: Inbound) -> ErrorResponse:
    """Return the error response to a signal that could not be processed because of an internal error."""
    entity = signal.query.entity if isinstance(signal, Subscribe) else signal.entity
    is_twin = isinstance(signal, Command | Subscribe | Request | Cancel | SessionMessage)
    channel = getattr(signal, "channel", "twin" if is_twin else "live")
    return ErrorResponse(entity, group_of(entity), INTERNAL_ERROR, signal.headers, channel)


def group_by_arrival(waiting: Sequence[Effect]) -> list[tuple[InboundDelivery, list[Effect]]]:
    """Return the effects of each delivery, in order."""
    steps_by_arrival: dict[InboundDelivery, list[Effect]] = {}
    for step in waiting:
        steps_by_arrival.setdefault(step.arrival, []).append(step)
    return list(steps_by_arrival.items())


def log_fields(arrival: InboundDelivery, headers: Headers) -> dict[str, Any]:
    """Return the log fields of a delivery and its conversation."""
    return {
        "connection": arrival.route.connection_id,
        "source": arrival.route.index,
        "address": arrival.delivery.address,
        **log_context(headers),
    }
