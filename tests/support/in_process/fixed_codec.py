"""A codec that decodes every payload to given signals."""

from __future__ import annotations

from collections.abc import Sequence

from mappings.mappers.base import Codec
from mappings.model.envelope import Envelope
from mappings.model.signals import Inbound, Outbound


class FixedCodec(Codec):
    """Reads this signal in whatever comes, or fails as no codec should."""

    def __init__(self, signal: Inbound | Exception) -> None:
        self._signal = signal

    def decode(self, envelope: Envelope, session: object) -> Sequence[Inbound]:
        if isinstance(self._signal, Exception):
            raise self._signal
        return [self._signal]

    def encode(self, signal: Outbound, session: object) -> Sequence[Envelope]:
        return []
