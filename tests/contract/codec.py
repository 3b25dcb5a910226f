"""Behaviors of every codec, for any wire protocol.

A codec's test inherits `CodecBehaviors` and gives it the codec, a client of its own, and samples. The client is the peer: it
encodes and decodes messages without the codec. Here a sample's signal is only encoded and decoded again; the bytes on the
wire are tested with each codec.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mappings.errors import DecodeError
from mappings.mappers.base import Codec
from mappings.model.envelope import Envelope
from mappings.model.signals import Inbound, Outbound
from tests.support.acceptance import accepted, accepts
from tests.support.dice import examples

FEW = settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.differing_executors])


class Client(Protocol):
    """The other end of a wire protocol."""

    def send(self, signal: Inbound) -> Envelope:
        """Return the envelope in which a client sends this signal."""

    def receive(self, envelopes: Sequence[Envelope]) -> Outbound:
        """Decode what the service sent."""


class CodecBehaviors:
    """Inherit, and answer these four questions."""

    def codec(self) -> Codec:
        raise AssertionError("the test of a codec names its codec")

    def client(self) -> Client:
        raise AssertionError("the test of a codec brings a client")

    def commands(self) -> Sequence[Inbound]:
        """Return samples of every signal that clients send."""
        raise AssertionError("the test of a codec gives samples")

    def answers(self) -> Sequence[Outbound]:
        """Return samples of every signal that the service sends."""
        raise AssertionError("the test of a codec gives samples")

    def test_a_command_is_decoded_as_it_was_sent(self) -> None:
        codec, client = self.codec(), self.client()
        for command in self.commands():
            assert list(codec.decode(client.send(command), codec.session())) == [command]

    def test_an_answer_is_received_as_it_was_encoded(self) -> None:
        codec, client = self.codec(), self.client()
        for answer in self.answers():
            assert client.receive(codec.encode(answer, codec.session())) == answer

    def test_an_input_that_is_cut_off_is_a_decode_error(self) -> None:
        """At every byte, so that a broken link can end a message anywhere."""
        codec, client = self.codec(), self.client()
        for command in self.commands():
            whole = client.send(command)
            for length in range(len(whole.payload)):
                with pytest.raises(DecodeError):
                    codec.decode(Envelope(whole.payload[:length], whole.headers), codec.session())

    @FEW
    @given(payload=st.binary(max_size=400))
    def test_random_bytes_are_nothing_or_a_decode_error(self, payload: bytes) -> None:
        self.decode_something(payload)

    @accepts(at_least=1)
    @settings(FEW, max_examples=examples(200))
    @given(data=st.data())
    def test_a_damaged_command_is_a_command_or_a_decode_error(self, data: st.DataObject) -> None:
        """Bytes of every other valid command are replaced, taken out and put in."""
        commands = self.commands()
        whole = self.client().send(commands[data.draw(st.integers(0, len(commands) - 1))]).payload
        if data.draw(st.booleans()):
            start = data.draw(st.integers(0, len(whole)))
            end = data.draw(st.integers(start, min(len(whole), start + 8)))
            whole = whole[:start] + data.draw(st.binary(max_size=8)) + whole[end:]
        self.decode_something(whole)

    def test_the_headers_of_an_envelope_are_texts(self) -> None:
        codec = self.codec()
        for answer in self.answers():
            for envelope in codec.encode(answer, codec.session()):
                assert all(isinstance(part, str) for pair in envelope.headers.items() for part in pair)

    def decode_something(self, payload: bytes) -> Sequence[Any]:
        """Decode what may be anything: signals come of it, or a DecodeError that an answer can be made of."""
        codec = self.codec()
        try:
            signals = codec.decode(Envelope(payload, {}), codec.session())
        except DecodeError as error:
            refused = error
        else:
            accepted()
            return signals
        assert 400 <= refused.fault.status < 500
        assert refused.group in ("things", "policies")
        return ()
