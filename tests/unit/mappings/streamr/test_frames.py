"""Frames of the Streamr protocol: how each is encoded, and that it decodes to the same frame."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mappings.errors import Fault
from mappings.streamr.errors import ErrorSubject, Sub, UnknownVersion
from mappings.streamr.frames import (
    Broadcast,
    Error,
    ErrorPayload,
    FrameStyle,
    FrameType,
    NoResend,
    Resending,
    Resent,
    StreamrFrame,
    Subscribed,
    Unicast,
    Unsubscribed,
    broadcast,
    envelope,
    error_of,
    type_of,
    unicast,
    write_frame,
)
from mappings.streams.entry import StreamEntry, encode_content, encode_entry
from tests.support.acceptance import accepted, accepts
from tests.support.dice import examples
from tests.support.streamr_frames import FrameRefused, read_frame
from tests.support.table import each_row
from tests.support.vectors import streamr as vectors

FRAMES = vectors.rows("frames")
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
NUMBER = st.integers(0, (1 << 53) - 1)
SUBS: st.SearchStrategy[Sub] = TEXT | st.integers(-9, 1 << 53)
MESSAGES = st.builds(
    StreamEntry, TEXT, st.integers(0, 255), NUMBER, NUMBER, NUMBER, st.none() | NUMBER, TEXT.map(encode_content)
)
PLACES = (TEXT, st.integers(0, 255))
STYLES = st.builds(FrameStyle, st.sampled_from([28, 29]), st.sampled_from(["", None]), st.just(ErrorPayload.OBJECT))
ABOUT = st.builds(ErrorSubject, st.none() | TEXT, st.none() | st.integers(0, 255), st.none() | SUBS)
ANY_FRAME: st.SearchStrategy[StreamrFrame] = st.one_of(
    st.builds(Broadcast, MESSAGES),
    st.builds(Unicast, SUBS, MESSAGES),
    *(st.builds(kind, *PLACES) for kind in (Subscribed, Unsubscribed)),
    *(st.builds(kind, *PLACES, SUBS) for kind in (Resending, Resent, NoResend)),
    st.builds(Error, TEXT, st.none() | st.integers(400, 599), st.none() | TEXT, ABOUT, st.none() | TEXT),
)


@each_row("row", FRAMES, ids=vectors.case)
def test_a_frame_is_written_as_the_protocol_has_it(row: dict[str, Any]) -> None:
    written = write_frame(vectors.frame(row), vectors.style(row))
    assert json.loads(written) == row["wire"]
    assert [type(item) for item in json.loads(written)] == [type(item) for item in row["wire"]]


@each_row("row", FRAMES, ids=vectors.case)
def test_an_encoded_frame_decodes_to_its_contents(row: dict[str, Any]) -> None:
    assert read_frame(json.dumps(row["wire"]).encode()) == vectors.frame(row)


@settings(max_examples=examples(200), deadline=None)
@given(ANY_FRAME, STYLES)
def test_every_frame_comes_back_as_it_was(frame: StreamrFrame, style: FrameStyle) -> None:
    written = write_frame(frame, style)
    assert read_frame(written) == frame
    layer, number, _, _ = json.loads(written)
    assert (layer, number) == (0, type_of(frame))


@settings(max_examples=examples(60), deadline=None)
@given(TEXT, st.sampled_from(ErrorPayload))
def test_case_x05_the_text_of_an_error_is_read_from_each_shape(text: str, shape: ErrorPayload) -> None:
    frame = read_frame(write_frame(error_of(Fault(400, "streamr:x", f"Oh {text}")), FrameStyle(errors=shape)))
    assert isinstance(frame, Error)
    assert frame.text == f"Oh {text}"


def test_case_s05_a_message_is_encoded_once_for_all_subscribers() -> None:
    message = StreamEntry("tank", 0, 1, 0, 7, None, encode_content("{}"))
    array = encode_entry(message)
    assert broadcast(array) == write_frame(Broadcast(message))
    assert unicast("a", array) == write_frame(Unicast("a", message))


def test_errors_of_older_services_are_read() -> None:
    """An object without a text, and the error in an answer to `subscribe`."""
    assert read_frame(b'[0,7,"",{"error":{}}]') == Error("")
    failed = read_frame(b'[0,2,"",{"stream":"s","partition":0,"error":"boom"}]')
    assert failed == Error("boom", about=ErrorSubject("s", 0))
    assert read_frame(b'[0,7,null,"Stream tank-9 not found."]') == Error("Stream tank-9 not found.")


@pytest.mark.parametrize("layer", [b"1", b"2", b'"0"', b"null", b"true", b"false", b"[]"])
def test_another_control_layer_is_reported(layer: bytes) -> None:
    with pytest.raises(UnknownVersion, match="expected 0"):
        read_frame(b'[%b,2,"",{"stream":"s","partition":0}]' % layer)


@each_row(
    "wire",
    [
        "not json",
        "{}",
        "[]",
        "null",
        '[0,2,""]',
        '[0,2,"",{"stream":"s","partition":0},1]',
        '[0,8,"",{}]',
        '[0,-1,"",{}]',
        '[0,"2","",{"stream":"s","partition":0}]',
        '[0,true,"",["a"]]',
        '[0,2,"",{"stream":5,"partition":0}]',
        '[0,2,"",{"stream":"s"}]',
        '[0,3,"",[]]',
        '[0,4,"",{"stream":"s","partition":0}]',
        '[0,6,"",{"stream":"s","partition":0,"sub":null}]',
        '[0,1,null,[28,"s",0,1,0,7,null,27,"{}"]]',
        '[0,7,"",7]',
        '[0,7,"",null]',
        '[0,0,"",{}]',
        '[0,0,"",[]]',
    ],
)
def test_an_invalid_frame_is_refused(wire: str) -> None:
    with pytest.raises(FrameRefused):
        read_frame(wire.encode())


@accepts(at_least=3)
@settings(max_examples=examples(300), deadline=None)
@given(st.sampled_from(FRAMES), st.data())
def test_a_mutilated_frame_is_a_frame_or_refused(row: dict[str, Any], data: st.DataObject) -> None:
    payload = bytearray(json.dumps(row["wire"]).encode())
    if data.draw(st.booleans()):
        at = data.draw(st.integers(0, len(payload) - 1))
        payload[at : at + data.draw(st.integers(0, 4))] = data.draw(st.binary(max_size=3))
    try:
        read_frame(bytes(payload))
    except (FrameRefused, UnknownVersion) as error:
        status = error.status
    else:
        accepted()
        return
    assert status == 400


def test_a_response_carries_its_correlation_id_and_a_broadcast_does_not() -> None:
    answer = envelope(b"x", FrameType.SUBSCRIBED, session="r/a", correlation_id="c-1")
    assert answer.headers == {
        "content-type": "application/json",
        "streamr-type": "2",
        "streamr-session": "r/a",
        "correlation-id": "c-1",
    }
    assert "correlation-id" not in envelope(b"x", FrameType.BROADCAST, correlation_id="c-1").headers
    assert "correlation-id" in envelope(b"x", FrameType.UNICAST, correlation_id="c-1").headers
