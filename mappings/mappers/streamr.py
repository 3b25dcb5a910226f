"""The Streamr protocol, control layer 0: JSON objects ask, JSON arrays of four items answer.

Reading is all that is done here: a request becomes `SessionMessage`, and what it means is known at the protocol's desk
(`connectivity.sessions`), which also writes what a session is sent. Written here is what anybody may have to say about a
delivery that could not be read: an error frame, in the style that the operator has chosen. Streamr protocol, requests and
errors; the parts are in `mappings/streamr`.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

from mappings.errors import DecodeError, EncodeError, Fault
from mappings.mappers.base import Codec
from mappings.model.envelope import Envelope
from mappings.model.signals import ErrorResponse, Inbound, Outbound, SessionMessage
from mappings.streamr.errors import RequestRefused
from mappings.streamr.frames import FrameType, envelope, frame_of, write_frame
from mappings.streamr.options import OPTIONS, StreamrOptions, read_streamr
from mappings.streamr.requests import RequestLimits, read_request, twin_of


class StreamrCodec(Codec):
    """Streams of messages that clients publish, follow and ask for again, in the Streamr protocol.

    A source reads requests (`publish`, `subscribe`, `unsubscribe`, `resend`, `disconnect`) and its reply-target takes what
    they are answered with: whoever reads one reply address is one session. Streams exist by being listed in `streams`;
    without a definition there are none, and only the events of things and policies can be had, as `things/<id>` and
    `policies/<id>`. Their messages are the items of a history in the Ditto protocol, and what is published to them are its
    commands.

    What a session follows goes on when the service is started again, with what came meanwhile; a resend that was cut off is
    answered with an error. A session ends when its client says `disconnect`, when it makes no request for
    `sessionIdleTimeout`, when its broker says that nobody receives what is sent to it (MQTT 5 and AMQP do: three times in
    half a minute or more) or lets nothing be sent there, and when an operator closes or deletes the connection.
    """

    terminal_needs_request = False
    options = OPTIONS
    reads_empty = True
    has_sessions = True
    terms: StreamrOptions = StreamrOptions()

    def configured(self, options: Mapping[str, Any]) -> Self:
        made = copy.copy(self)
        made.terms = read_streamr(options)
        return made

    def decode(self, envelope: Envelope, session: Any) -> Sequence[Inbound]:  # noqa: ARG002
        """The request of a message.

        Raises DecodeError, whose fault names the stream, partition and `sub` it is about.
        """
        try:
            request = read_request(envelope.payload, _LIMITS, accept_non_json=self.terms.accept_non_json)
        except RequestRefused as error:
            about = {name: value for name, value in error.about._asdict().items() if value is not None}
            raise DecodeError(replace(error.fault, extra=about)) from error
        return (SessionMessage(request, {}, twin_of(request)),)

    def encode(self, signal: Outbound, session: Any) -> Sequence[Envelope]:  # noqa: ARG002
        """The frame of an error. Raises EncodeError for all else, which sessions are sent by their desk."""
        if not isinstance(signal, ErrorResponse):
            words = f"The Streamr protocol has no words for a {type(signal).__name__}."
            raise EncodeError(Fault(400, "connectivity:message.mapping.failed", words))
        correlation_id = signal.headers.get("correlation-id")
        frame = frame_of(signal.fault, correlation_id)
        return (envelope(write_frame(frame, self.terms.style), FrameType.ERROR, correlation_id=correlation_id),)


_LIMITS = RequestLimits()

CODEC: Codec = StreamrCodec()
