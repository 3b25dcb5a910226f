"""Errors of a peer: reactive-streams-io, limits and malformed input, row by row."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from mappings.reactive_streams_io.endpoint import EndpointRole
from mappings.reactive_streams_io.errors import Consequence, ProtocolViolation, broken, unsupported
from mappings.reactive_streams_io.events import Closed, StreamFailed
from mappings.reactive_streams_io.frames import (
    Extension,
    OnNext,
    OnNextPart,
    Ping,
    RequestFrame,
    SubscribeFrame,
    encode,
)
from mappings.reactive_streams_io.limits import EndpointLimits
from tests.support.reactive_streams_io.conversation import EndpointClient, is_goodbye
from tests.support.reactive_streams_io.examples import raw
from tests.support.table import each_row

NEVER = "11 09 74 63 6b 2f 6e 65 76 65 72"


class Row(NamedTuple):
    """The bytes of a peer after the hellos, first valid and then invalid; a client subscribes as stream 1."""

    wrong: str | bytes
    before: str | bytes = ""
    role: EndpointRole = EndpointRole.SERVER
    options: Mapping[str, Any] = MappingProxyType({})


def to_client(wrong: str | bytes, before: str | bytes = "81 01 00", **options: Any) -> Row:
    return Row(wrong, before, EndpointRole.CLIENT, options)


MESSAGES = {"has_messages": True}
ROWS = {
    ProtocolViolation.VARINT_TOO_LONG: Row("12 05 80 80 80 80 80 80 80 80 80 01"),
    ProtocolViolation.VARINT_NOT_MINIMAL: Row("12 05 8a 00"),
    ProtocolViolation.OUT_OF_RANGE: Row("13 80 80 80 80 10"),
    ProtocolViolation.UNKNOWN_CODE: Row("55"),
    ProtocolViolation.NOT_IN_FORCE: Row("a4 00"),
    ProtocolViolation.NOT_UTF_8: Row("11 02 c3 28 01 00"),
    ProtocolViolation.FRAME_TOO_LARGE: Row("11 ff ff ff ff 07"),
    ProtocolViolation.TEXT_TOO_LONG: Row("03 ff ff ff ff 07"),
    ProtocolViolation.BYTES_OUT_OF_BOUNDS: Row(encode(Ping(bytes(65)))),
    ProtocolViolation.TOO_MANY_EXTENSIONS: Row("01 00 41", options={"hello": ""}),
    ProtocolViolation.HELLO_MISSING: Row("12 05 0a", options={"hello": ""}),
    ProtocolViolation.HELLO_REPEATED: Row("01 00 00"),
    ProtocolViolation.HELLO_OF_THE_WRONG_KIND: Row("02 00 00", options={"hello": ""}),
    ProtocolViolation.ELEMENT_SIZE_TOO_LARGE: to_client("81 01 80 80 04", ""),
    ProtocolViolation.PART_TOO_LARGE: to_client("84 01 00 80 80 04"),
    ProtocolViolation.ID_IN_USE: Row(f"{NEVER} 01 01", f"{NEVER} 01 00"),
    ProtocolViolation.NOT_ASKED_FOR: to_client("81 02 00"),
    ProtocolViolation.NO_ELEMENT_SIZE: to_client("82 01 01 61", ""),
    ProtocolViolation.PACKED_WITHOUT_SIZE: to_client("83 01 01 61"),
    ProtocolViolation.PACKED_NOTHING: to_client("83 01 00", "81 01 02"),
    ProtocolViolation.TOO_MANY_FRAMES: Row(
        "b0 01 13 09 13 09", options={**MESSAGES, "limits": EndpointLimits(frames=2)}
    ),
    ProtocolViolation.CUT_FRAME: Row("b0 01 12 01", options=MESSAGES),
    ProtocolViolation.NO_SEQUENCE_NUMBER: Row("12 01 01", "b0 01 13 01", options=MESSAGES),
    ProtocolViolation.SEQUENCE_GAP: Row("b0 02 13 01", options=MESSAGES),
    ProtocolViolation.SEQUENCE_MISPLACED: Row("b0 01 b0 02", options=MESSAGES),
    ProtocolViolation.RESUME_MISPLACED: to_client("a2 00"),
    ProtocolViolation.ACKNOWLEDGED_TOO_MUCH: to_client("a4 09"),
    ProtocolViolation.UNREAD: Row(encode(Ping(bytes(64))) * 20, options={"limits": EndpointLimits(backlog=1000)}),
    ProtocolViolation.NAME_TOO_LONG: Row(encode(SubscribeFrame("x" * 8193, 1, 0))),
    ProtocolViolation.TOO_MANY_SUBSCRIPTIONS: Row(
        encode(SubscribeFrame("tck/never", 2, 0)), f"{NEVER} 01 00", options={"limits": EndpointLimits(subscriptions=1)}
    ),
    ProtocolViolation.NO_DEMAND: Row(encode(RequestFrame(1, 0)), f"{NEVER} 01 00"),
    ProtocolViolation.MORE_THAN_DEMANDED: to_client(encode(OnNext(1, b"x")) * 6),
    ProtocolViolation.ELEMENT_TOO_LARGE: to_client(
        encode(OnNextPart(1, 0, bytes(99))), limits=EndpointLimits(element=98)
    ),
    ProtocolViolation.TOO_MANY_OPEN_ELEMENTS: to_client(
        "84 01 00 00 84 01 01 00 84 01 02 00", limits=EndpointLimits(open_elements=2)
    ),
    ProtocolViolation.WRONG_ELEMENT_SIZE: to_client("85 01 00 01 61", "81 01 02"),
    ProtocolViolation.COMPLETE_AMID_AN_ELEMENT: to_client("84 01 00 00 86 01"),
    ProtocolViolation.SUBSCRIBED_AGAIN: Row(f"{NEVER} 01 00", f"{NEVER} 01 00"),
    ProtocolViolation.NOBODY_THERE: Row("12 09 01 13 09"),
    ProtocolViolation.TOO_LATE: to_client("82 01 01 61 84 01 00 01 61 86 01", "81 01 00 86 01"),
    ProtocolViolation.PART_OF_NOTHING: Row("12 01", f"{NEVER} 01 00"),
}


def test_every_row_of_the_table_has_its_example() -> None:
    assert set(ROWS) == set(ProtocolViolation) - {ProtocolViolation.TEXT}


def test_a_text_message_ends_the_connection_like_invalid_bytes() -> None:
    peer = EndpointClient(has_messages=True, is_connected=True)
    peer.expect("01 00 00")
    peer.react(peer.endpoint.reject(ProtocolViolation.TEXT))
    assert peer.endpoint.is_closed
    assert not peer.endpoint.is_drained
    assert is_goodbye(peer.sends(), f"protocol error: {ProtocolViolation.TEXT.condition}")
    assert peer.endpoint.is_drained
    assert peer.events[-1] == Closed(f"protocol error: {ProtocolViolation.TEXT.condition}", is_fault=True)
    assert peer.endpoint.reject(ProtocolViolation.TEXT) == []


@each_row("mistake", ROWS, ids=lambda mistake: mistake.name.lower())
def test_a_mistake_has_its_consequence(mistake: ProtocolViolation) -> None:
    row = ROWS[mistake]
    options = dict(row.options)
    is_server = row.role is EndpointRole.SERVER
    hello = options.pop("hello", "01 00 02 02 03" if is_server else "02 00 03 01 02 03")
    peer = EndpointClient(row.role, **options)
    peer.sends()
    peer.expect(hello)
    if not is_server:
        peer.endpoint.subscribe("a", 5)
        peer.sends()
    peer.expect(row.before)
    before = len(peer.events)
    sent = peer.expect(row.wrong)
    if mistake.consequence is Consequence.FATAL:
        assert is_goodbye(sent, f"protocol error: {mistake.condition}")
        assert peer.endpoint.is_closed
        return
    assert not peer.endpoint.is_closed
    if mistake.consequence is Consequence.IGNORED:
        assert sent == b""
        assert len(peer.events) == before
    elif is_server:
        assert 0x87 in sent
    else:
        assert isinstance(peer.events[-1], StreamFailed)
        assert mistake.condition in peer.events[-1].reason
        assert sent in (raw("13 01"), b"")


def test_a_fatal_protocol_error_states_its_cause_in_the_goodbye() -> None:
    assert broken(ProtocolViolation.UNKNOWN_CODE, "code 0x55").fault.message == (
        "protocol error: an unknown frame code: found code 0x55"
    )
    assert broken(ProtocolViolation.SEQUENCE_GAP).fault.message == "protocol error: sequence gap"
    assert unsupported(3).fault.message == "unsupported version 3; supported: 0"


def test_each_consequence_is_some_mistakes() -> None:
    assert {mistake.consequence for mistake in ProtocolViolation} == set(Consequence)
    assert len({mistake.condition for mistake in ProtocolViolation}) == len(list(ProtocolViolation))


def test_the_extensions_of_the_examples_are_known() -> None:
    assert {extension.value for extension in Extension} == {1, 2, 3}
