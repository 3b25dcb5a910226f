"""The codec of one wire protocol: envelope ⇄ signals.

The name of the file is the registration: `load_codec("Ditto")` imports `mappings/codecs/ditto.py` and takes its `CODEC`.
A codec is stateless for itself; a protocol that remembers something per peer (open ids, a handshake, "first item seen")
keeps it in the object that `session()` returns, which the caller holds for as long as the peer's session lives.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from mappings.envelope import Envelope
from mappings.signals import Inbound, Outbound


class Codec(Protocol):
    terminal_needs_request: bool
    """Whether `Complete` and `Failed` must wait for the client's first request."""

    def session(self) -> Any:
        """A new peer's state, or None where the protocol needs none."""

    def decode(self, envelope: Envelope, session: Any) -> Sequence[Inbound]:
        """The signals of an envelope. Raises DecodeError, and nothing else, for what cannot be read."""

    def encode(self, signal: Outbound, session: Any) -> Sequence[Envelope]:
        """The envelopes that say `signal`, in order; their headers are the transport headers the protocol itself sets.

        Raises EncodeError for a signal that the protocol has no words for.
        """
