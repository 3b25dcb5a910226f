"""The Streamr protocol, control layer 0: requests are JSON objects, replies JSON arrays of four items.

A request becomes `SessionMessage`; the protocol's session handler (`connectivity.sessions`) processes it, and encodes the
session's frames. Encoded here is only the error frame for a delivery that could not be decoded, in the configured style.
Streamr protocol, requests and errors; the parts are in `mappings/streamr`.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

from mappings.errors import DecodeError, EncodeError, mapping_failed
from mappings.mappers.base import Codec
from mappings.model.envelope import Envelope
from mappings.model.signals import ErrorResponse, Inbound, Outbound, SessionMessage
from mappings.streamr.errors import RequestRejected
from mappings.streamr.frames import (
    CONTENT_TYPE,
    HEADER,
    FrameType,
    envelope,
    fault_frame,
    message_version,
    write_frame,
)
from mappings.streamr.options import OPTIONS, StreamrOptions, read_streamr
from mappings.streamr.requests import read_request, twin_of


class StreamrCodec(Codec):
    """Streams of messages that clients publish, subscribe to and resend, in the Streamr protocol.

    A source reads requests (`publish`, `subscribe`, `unsubscribe`, `resend`, `disconnect`) and its reply-target sends the
    replies: each reply address is one session. The option `streams` must list every stream. Without a mapping definition,
    only the streams `things/<id>` and `policies/<id>` exist. The messages of these streams are the events of the thing or
    policy in the Ditto protocol, and a message that a client publishes to them is a command. After a restart of the
    service, subscriptions continue with the messages that they have missed; an interrupted resend fails. A session ends
    when its client sends `disconnect`, or makes no request for `sessionIdleTimeout`; at a listener, the session of a socket
    ends with the socket instead. It also ends when the broker rejects the session's address, or reports (MQTT 5 and AMQP)
    that no client reads it, three times in half a minute or more. Finally, it ends when an operator closes or deletes the
    connection.
    """

    terminal_needs_request = False
    content_type = CONTENT_TYPE
    options = OPTIONS
    reads_empty = True
    has_sessions = True
    negotiated = HEADER
    terms: StreamrOptions = StreamrOptions()

    def configure(self, options: Mapping[str, Any]) -> Self:
        made = copy.copy(self)
        made.terms = read_streamr(options)
        return made

    def negotiate(self, query: Mapping[str, str]) -> str | None:
        version = message_version(query)
        return None if version is None else str(version)

    def decode(self, envelope: Envelope, session: Any) -> Sequence[Inbound]:  # noqa: ARG002
        """Return the request of a message.

        Raises DecodeError with the request's stream, partition and `sub`.
        """
        try:
            request = read_request(envelope.payload, accept_non_json=self.terms.accept_non_json)
        except RequestRejected as error:
            about = {name: value for name, value in error.about._asdict().items() if value is not None}
            raise DecodeError(replace(error.fault, extra=about)) from error
        return (SessionMessage(request, {}, twin_of(request)),)

    def encode(self, signal: Outbound, session: Any) -> Sequence[Envelope]:  # noqa: ARG002
        """Return the frame of an error. Raises EncodeError for other signals: the session handler sends those."""
        if not isinstance(signal, ErrorResponse):
            message = f"The Streamr protocol cannot express a {type(signal).__name__}."
            raise EncodeError(mapping_failed(message))
        correlation_id = signal.headers.get("correlation-id")
        frame = fault_frame(signal.fault, correlation_id)
        return (envelope(write_frame(frame, self.terms.style), FrameType.ERROR, correlation_id=correlation_id),)


CODEC: Codec = StreamrCodec()
