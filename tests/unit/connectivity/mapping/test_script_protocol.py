"""Frames between the service and a script process."""

from __future__ import annotations

import pytest

from connectivity.mapping.script_protocol import (
    BadFrame,
    CallFailure,
    CallResult,
    Frames,
    ScriptLimits,
    WorkerReady,
    frame,
)


def test_messages_are_decoded_from_chunks_of_any_size() -> None:
    messages: list[WorkerReady | CallResult | CallFailure] = [
        WorkerReady(),
        CallResult("[]"),
        CallFailure("ä\0"),
        CallResult("x" * 70_000),
    ]
    whole = b"".join(frame(message) for message in messages)
    for step in (1, 3, 4096, len(whole)):
        frames = Frames(1 << 20)
        found = [
            message for start in range(0, len(whole), step) for message in frames.feed(whole[start : start + step])
        ]
        assert found == messages


@pytest.mark.parametrize(
    "received",
    [
        (1 << 30).to_bytes(4, "big"),
        frame(ScriptLimits()),
        b"\0\0\0\1\xc1",
        b"\0\0\0\0",
        frame(CallResult("x" * 100)),
    ],
    ids=["too long announced", "an order", "no msgpack", "nothing", "too long"],
)
def test_invalid_bytes_are_a_bad_frame(received: bytes) -> None:
    with pytest.raises(BadFrame):
        list(Frames(64).feed(received))
