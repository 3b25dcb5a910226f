"""Behaviors of every payload mapper, against its vector file.

`tests/vectors/mappings/<name>.json` holds two lists. `read`: an envelope, the options that differ from none, and the signals
or the error that come of it. `written`: a signal, the options, and the envelopes or the error. A payload is JSON
(`message`), a text (`text`), or bytes in hex (`hex`); so is what is written.

A mapper's test inherits `MapperBehaviors`, names it, and gives options that it works with.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mappings.errors import DecodeError, EncodeError, PlaceholderError
from mappings.mappers import load_codec
from mappings.mappers.base import PayloadMapper
from mappings.model.envelope import Envelope
from mappings.model.signals import Inbound, Outbound
from mappings.options import InvalidMapperOptions
from mappings.placeholders.values import PlaceholderContext
from tests.contract.codec import FEW
from tests.support.paths import VECTORS
from tests.support.vectors import ditto as vectors

FOLDER = VECTORS / "mappings"
NOW = datetime(2030, 1, 15, 7, 30, tzinfo=UTC)

_TEXT = st.text(max_size=20)


def mapper(name: str, options: Mapping[str, Any] | None = None) -> PayloadMapper:
    """The mapper as a definition with these options makes it."""
    codec = load_codec(name).configure(options or {})
    assert isinstance(codec, PayloadMapper)
    return codec


def context(headers: Mapping[str, object]) -> PlaceholderContext:
    """Return the context of a delivery with these headers."""
    return PlaceholderContext(headers=headers, connection_id="site", subjects=("acme:gateway",), now=lambda: NOW)


def read(codec: PayloadMapper, payload: bytes, headers: Mapping[str, str] | None = None) -> list[Inbound]:
    """Return the signals that the mapper makes of a delivery."""
    envelope = Envelope(payload, dict(headers or {}))
    return list(codec.decode_with(envelope, codec.session(), context(envelope.headers)))


def write(codec: PayloadMapper, signal: Outbound) -> list[Envelope]:
    """Return the envelopes that the mapper makes of a signal."""
    return list(codec.encode_with(signal, codec.session(), context({})))


def payload_of(row: Mapping[str, Any]) -> bytes:
    if "hex" in row:
        return bytes.fromhex(row["hex"])
    if "text" in row:
        return str(row["text"]).encode()
    return json.dumps(row["message"]).encode() if "message" in row else b""


class MapperBehaviors:
    """Inherit, and say which mapper."""

    name: ClassVar[str]
    options: ClassVar[Mapping[str, Any]] = MappingProxyType({})
    """The options that it requires."""

    headers: ClassVar[Mapping[str, str]] = MappingProxyType({})
    """Headers of a message that it maps to a signal."""

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        for kind in ("read", "written"):
            if kind in metafunc.fixturenames:
                rows = json.loads((FOLDER / f"{_file(self.name)}.json").read_text(encoding="utf-8"))[kind]
                metafunc.parametrize(kind, rows, ids=vectors.about)

    def test_a_payload_is_decoded_into_its_signals_or_refused(self, read: dict[str, Any]) -> None:
        codec = mapper(self.name, {**self.options, **read.get("options", {})})
        envelope = Envelope(payload_of(read), read.get("headers", {}))
        around = context(envelope.headers)
        if "refused" in read:
            with pytest.raises((DecodeError, PlaceholderError)) as caught:
                codec.decode_with(envelope, codec.session(), around)
            assert [caught.value.fault.status, caught.value.fault.error] == read["refused"]
        else:
            expected = [vectors.signal(row) for row in read["signals"]]
            assert list(codec.decode_with(envelope, codec.session(), around)) == expected

    def test_a_signal_is_encoded_into_its_envelopes_or_refused(self, written: dict[str, Any]) -> None:
        codec = mapper(self.name, {**self.options, **written.get("options", {})})
        signal = vectors.signal(written["signal"])
        if "refused" in written:
            with pytest.raises(EncodeError, match=written["refused"]):
                write(codec, signal)
            return
        envelopes = write(codec, signal)
        assert len(envelopes) == len(written["envelopes"])
        for envelope, row in zip(envelopes, written["envelopes"], strict=True):
            assert dict(envelope.headers) == row["headers"]
            if "message" in row:
                assert json.loads(envelope.payload) == row["message"]
            else:
                assert envelope.payload == payload_of(row)

    @FEW
    @given(payload=st.binary(max_size=200), headers=st.dictionaries(_TEXT, _TEXT, max_size=3), data=st.data())
    def test_of_anything_come_signals_or_a_typed_error(
        self, payload: bytes, headers: dict[str, str], data: st.DataObject
    ) -> None:
        known = {name: data.draw(st.one_of(st.just(value), _TEXT)) for name, value in self.headers.items()}
        codec = mapper(self.name, self.options)
        refused: DecodeError | PlaceholderError | None = None
        try:
            read(codec, payload, {**headers, **known})
        except (DecodeError, PlaceholderError) as error:
            refused = error
        assert refused is None or 400 <= refused.fault.status < 500

    @FEW
    @given(
        name=st.sampled_from(["content-type-blocklist", "thing", "thingId", "fields", "commandHeaders", "nothing"]),
        value=st.recursive(
            st.none() | st.booleans() | st.integers() | st.text(max_size=10) | st.sampled_from(["{{ x:y }}", "{{"]),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXT, inner, max_size=3),
            max_leaves=5,
        ),
    )
    def test_any_options_are_taken_or_refused(self, name: str, value: object) -> None:
        refused: InvalidMapperOptions | None = None
        try:
            mapper(self.name, {**self.options, name: value})
        except InvalidMapperOptions as error:
            refused = error
        assert refused is None or (refused.problems and refused.fault.status == 400)

    def test_a_misspelt_option_receives_which_one_was_meant(self) -> None:
        with pytest.raises(InvalidMapperOptions) as caught:
            mapper(self.name, {**self.options, "content-type-blacklist": "x"})
        (problem,) = caught.value.problems
        assert (problem.steps, problem.nearest) == (("content-type-blacklist",), "content-type-blocklist")

    def test_a_mapper_without_its_required_options_is_refused(self) -> None:
        codec = load_codec(self.name)
        needed = {option.name for option in codec.options if option.is_required}
        assert codec.needs_definition is bool(needed)
        if needed:
            with pytest.raises(InvalidMapperOptions) as caught:
                codec.configure({})
            assert {str(problem.steps[0]) for problem in caught.value.problems} == needed


def _file(name: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name).lstrip("_")
