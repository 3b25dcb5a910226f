"""The steps of a delivery: what is done for each of its signals once all of it is durable, in order.

A delivery is carried out when its batch is taken up, and answered when that is durable. What lies between are steps: an
answer to tell (`RespondEffect`), something to say to others (`ForwardEffect`), or what a desk has to say of a request
(`SessionEffect`). Here is also how an answer rests in the store, so that a redelivery can be told it again.
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

Told: TypeAlias = Response | ErrorResponse


class RespondEffect(NamedTuple):
    """An answer that may be told once what was submitted is durable: by its route, or to what collects for the requester."""

    arrival: InboundDelivery
    told: Told
    route: ReplyTargetPublisher
    pending: PendingRequest | None = None


class ForwardEffect(NamedTuple):
    """What a signal with these headers says to others, once all of its delivery is durable. `pending` waits for answers."""

    arrival: InboundDelivery
    say: Callable[[], None]
    headers: Headers
    pending: PendingRequest | None = None


class SessionEffect(NamedTuple):
    """What a desk says of a request once all of its delivery is durable, or when it could not be stored."""

    arrival: InboundDelivery
    say: SessionReply
    headers: Headers
    pending: None = None


Steps: TypeAlias = list[RespondEffect | ForwardEffect | SessionEffect]


def answer_bytes(response: Response, command: Command) -> bytes:
    """An answer as it is remembered: of its headers those that the command did not bring along."""
    asked = command.headers
    own = {name: value for name, value in response.headers.items() if asked.get(name) != value}
    return msgspec.msgpack.encode((response.action, response.path, response.status, response.value, own))


def stored_answer(known: bytes, command: Command) -> Response:
    """The same answer again, to whoever asks now."""
    action, path, status, value, own = msgspec.msgpack.decode(
        known, type=tuple[str, str, int, bytes | None, dict[str, Any]]
    )
    return Response(command.entity, action, path, status, value, {**command.headers, **own})


def internal_error(answer: Told) -> ErrorResponse:
    group = answer.entity.type.group if answer.entity is not None else "things"
    return ErrorResponse(answer.entity, group, INTERNAL_ERROR, answer.headers)


def by_arrival(waiting: Steps) -> list[tuple[InboundDelivery, Steps]]:
    """The steps of each delivery, in order."""
    found: dict[InboundDelivery, Steps] = {}
    for step in waiting:
        found.setdefault(step.arrival, []).append(step)
    return list(found.items())
