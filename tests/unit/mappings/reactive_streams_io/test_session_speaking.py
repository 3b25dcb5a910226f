"""What an application says of streams that are over: mappings.reactive_streams_io.session."""

from __future__ import annotations

from mappings.reactive_streams_io.limits import EndpointLimits
from mappings.reactive_streams_io.session import RsioSession, Speaker


def test_nothing_is_said_of_a_stream_that_is_over() -> None:
    speaker = Speaker()
    speaker.session = RsioSession(EndpointLimits(), keeps_copies=False)
    said = [
        speaker.accept(7),
        speaker.refuse(7, "404"),
        speaker.offer(7, [b"1"]),
        speaker.complete(7),
        speaker.fail(7, "500"),
        speaker.request(7, 1),
        speaker.cancel(7),
    ]
    assert said == [False] * 7
    assert (speaker.capacity(7), speaker.waiting(7)) == (0, 0)
    assert speaker.session.next_frame() is None
