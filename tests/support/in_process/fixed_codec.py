"""A codec that decodes every payload to a given signal."""

from __future__ import annotations

from collections.abc import Sequence

from mappings.mappers.base import Codec
from mappings.model.envelope import Envelope
from mappings.model.signals import Inbound, Outbound


class FixedCodec(Codec):
    """Decodes every payload to this signal, or raises this exception."""

    def __init__(self, signal: Inbound | Exception) -> None:
        self._signal = signal

    def decode(self, envelope: Envelope, session: object) -> Sequence[Inbound]:
        if isinstance(self._signal, Exception):
            raise self._signal
        return [self._signal]

    def encode(self, signal: Outbound, session: object) -> Sequence[Envelope]:
        return []
