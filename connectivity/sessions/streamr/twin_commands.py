"""Commands that clients publish to the stream of a thing or policy (Streamr protocol, publish).

A success has no reply; an error is sent as a frame.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from msgspec.structs import replace

from connectivity.sessions.base import SessionCommand
from connectivity.sessions.streamr.permissions import StreamPermission
from connectivity.sessions.streamr.reply_channel import StreamrReplyChannel
from connectivity.sources.deduplication import DeduplicationKey
from connectivity.transports.base import Done
from mappings.errors import DecodeError
from mappings.ids import EntityId, new_correlation_id
from mappings.mappers import load_codec
from mappings.model.envelope import Envelope
from mappings.model.signals import Command, ErrorResponse, Headers, Response
from mappings.streamr import errors
from mappings.streamr.errors import ErrorSubject, RequestRejected
from mappings.streamr.frames import error_of
from mappings.streamr.requests import Publish

_UNANSWERABLE = frozenset({"requested-acks", "response-required", "reply-to", "live-channel-condition"})
"""The headers of a command that concern responses."""

_CORRELATION_ID = "correlation-id"


def twin_command(
    request: Publish,
    entity: EntityId,
    permission: StreamPermission,
    headers: Headers,
    named: DeduplicationKey,
    channel: StreamrReplyChannel | None,
) -> SessionCommand:
    """Return the command in a request. `headers` are those of the request. Raises RequestRejected."""
    command = command_of(request, entity)
    own = {name: value for name, value in command.headers.items() if name not in _UNANSWERABLE}
    completed: Mapping[str, Any] = {
        **own,
        _CORRELATION_ID: own.get(_CORRELATION_ID) or headers.get(_CORRELATION_ID) or new_correlation_id(),
        "ditto-originator": permission.subjects[0],
        "response-required": False,
    }
    return SessionCommand(
        replace(command, headers=completed),
        permission.subjects,
        _separate_key(named),
        partial(_reply_error, request, channel),
    )


def _separate_key(named: DeduplicationKey) -> DeduplicationKey:
    """Return a separate key for a client's name: messages have another kind of stored answer."""
    if named.name is None or not named.is_chosen:
        return named
    return replace(named, name=named.name._replace(name=f"{named.name.name}:command"))


def _reply_error(
    request: Publish, channel: StreamrReplyChannel | None, answer: Response | ErrorResponse, ended: Done
) -> None:
    """Return the error of a command as a frame; a success has no reply."""
    if channel is None or not isinstance(answer, ErrorResponse):
        ended(None)
    else:
        channel.send_frame(error_of(answer.fault, ErrorSubject(request.stream), channel.correlation_id), ended)


def command_of(request: Publish, entity: EntityId) -> Command:
    """Return the command that is published to a twin.

    Raises RequestRejected for anything else, and for one on another twin.
    """
    try:
        signals = load_codec("Ditto").decode(Envelope(request.content.encode(), {}), None)
    except DecodeError as error:
        raise _no_command(request, error.fault.message) from error
    if len(signals) != 1 or not isinstance(signals[0], Command):
        raise _no_command(request, "Expected a command on the twin channel.")
    if signals[0].entity != entity:
        raise _no_command(request, "Expected a command on this entity.")
    return signals[0]


def _no_command(request: Publish, why: str) -> RequestRejected:
    return RequestRejected(errors.message_not_ditto(request.stream, why), ErrorSubject(request.stream))
