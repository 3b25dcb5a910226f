"""Effects of the signals of a delivery, carried out in order once its changes are durable.

There are three kinds: `RespondEffect` sends a response, `ForwardEffect` sends something to other connections, and
`SessionEffect` sends a session handler's reply. Responses for redeliveries are encoded here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import msgspec

from connectivity.dispatch.pending import PendingRequest
from connectivity.sessions.base import SessionReply
from connectivity.sources.delivery import InboundDelivery
from connectivity.targets.reply_target import ReplyTargetPublisher
from mappings.errors import INTERNAL_ERROR
from mappings.model.signals import Command, ErrorResponse, Headers, Response

CommandResponse: TypeAlias = Response | ErrorResponse


class RespondEffect(NamedTuple):
    """A response to be sent by `route`, or to be added to the acknowledgements of `pending`."""

    arrival: InboundDelivery
    response: CommandResponse
    route: ReplyTargetPublisher
    pending: PendingRequest | None = None


class ForwardEffect(NamedTuple):
    """A signal with these headers to be forwarded by `say`; `pending` waits for its responses."""

    arrival: InboundDelivery
    forward: Callable[[], None]
    headers: Headers
    pending: PendingRequest | None = None


class SessionEffect(NamedTuple):
    """A session handler's reply to a request: `say` gets the error if the request was not stored."""

    arrival: InboundDelivery
    reply: SessionReply
    headers: Headers
    pending: None = None


Effects: TypeAlias = list[RespondEffect | ForwardEffect | SessionEffect]


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
    group = answer.entity.type.group if answer.entity is not None else "things"
    return ErrorResponse(answer.entity, group, INTERNAL_ERROR, answer.headers)


def group_by_arrival(waiting: Effects) -> list[tuple[InboundDelivery, Effects]]:
    """Return the effects of each delivery, in order."""
    steps_by_arrival: dict[InboundDelivery, Effects] = {}
    for step in waiting:
        steps_by_arrival.setdefault(step.arrival, []).append(step)
    return list(steps_by_arrival.items())
