"""Every mapper module fulfills the contract of `mappings/mappers/base.py`."""

from __future__ import annotations

from mappings.errors import DecodeError
from mappings.mappers import codec_names, load_codec
from mappings.mappers.base import PayloadMapper
from mappings.model.envelope import Envelope
from mappings.model.signals import SessionMessage
from tests.support.table import each_row


@each_row("name", codec_names())
def test_every_codec_decodes_encodes_and_opens_sessions(name: str) -> None:
    codec = load_codec(name)
    assert isinstance(codec.terminal_needs_request, bool)
    assert callable(codec.encode)
    refused: DecodeError | None = None
    try:
        signals = codec.decode(Envelope(b"\xff\x00 not a message of any protocol"), codec.session())
    except DecodeError as error:
        refused = error
    if refused is not None:
        assert 400 <= refused.fault.status < 500
        return
    if not all(isinstance(signal, SessionMessage) for signal in signals):
        raise AssertionError(f"found {signals}, expected what only the protocol's session handler can read")
    may_leave = isinstance(codec, PayloadMapper) or bool(signals)
    assert may_leave, "only a mapper may leave to others what it cannot read"
