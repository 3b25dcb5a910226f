"""The reactive-streams-io protocol, version 0: several reactive streams in binary frames.

The meaning of a frame depends on its session. So a message becomes `SessionMessage` unchanged, and the protocol's session
handler (`connectivity.sessions`) decodes it. Encoded here is only the goodbye for a delivery that could not be accepted. The
parts are in `mappings/reactive_streams_io` (reactive-streams-io, brokers).
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, Self

from mappings.errors import EncodeError, mapping_failed
from mappings.mappers.base import Codec
from mappings.model.envelope import Envelope
from mappings.model.signals import ErrorResponse, Inbound, Outbound, SessionMessage
from mappings.reactive_streams_io import errors
from mappings.reactive_streams_io.frames import ALPN, CONTENT_TYPE, SUBPROTOCOL, Goodbye, encode, envelope
from mappings.reactive_streams_io.options import OPTIONS, RsioOptions, read_rsio


class ReactiveStreamsIoCodec(Codec):
    """Reactive streams in binary frames: clients subscribe to publishers and request elements.

    Publishers are the histories of things and policies (`things/<id>/history`), future events of a thing
    (`things/<id>/events`), searches (`things/search`) and the partitions of streams (`streams/<id>/<partition>`). A source
    reads the frames of clients, and its reply-target sends them frames: each reply address is one session.
    """

    terminal_needs_request = False
    content_type = CONTENT_TYPE
    options = OPTIONS
    reads_empty = True
    reads_streams = True
    subprotocol = SUBPROTOCOL
    alpn = ALPN
    has_sessions = True
    needs_order = True
    terms: RsioOptions = RsioOptions()

    def configure(self, options: Mapping[str, Any]) -> Self:
        made = copy.copy(self)
        made.terms = read_rsio(options)
        return made

    @property
    def unreliable_option(self) -> str | None:
        return None if self.terms.allows_unreliable else "allowUnreliable"

    def decode(self, envelope: Envelope, session: Any) -> Sequence[Inbound]:  # noqa: ARG002
        """Return the message unchanged."""
        return (SessionMessage(envelope.payload, {}, has_parts=True),)

    def encode(self, signal: Outbound, session: Any) -> Sequence[Envelope]:  # noqa: ARG002
        """Return the goodbye for an error.

        Raises EncodeError for other signals: the session handler sends those.
        """
        if not isinstance(signal, ErrorResponse):
            message = f"The reactive-streams-io protocol cannot express a {type(signal).__name__} outside a session."
            raise EncodeError(mapping_failed(message))
        return (envelope(encode(Goodbye(errors.write(signal.fault)))),)


CODEC: Codec = ReactiveStreamsIoCodec()
