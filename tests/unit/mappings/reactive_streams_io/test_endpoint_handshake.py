"""Handshake, varints and framing: the conformance suite of reactive-streams-io, 15.1 and 15.2."""

from __future__ import annotations

from mappings.reactive_streams_io.endpoint import EndpointRole
from mappings.reactive_streams_io.errors import LATE_HELLO
from mappings.reactive_streams_io.events import Closed, Interrupted, SessionOpened, StreamFailed
from mappings.reactive_streams_io.resumption import Resumables
from tests.support.reactive_streams_io.conversation import EndpointClient, H, greeted, is_goodbye, subscriber
from tests.support.reactive_streams_io.examples import raw
from tests.support.table import each_row

RANGE = "11 0d 74 63 6b 2f 72 61 6e 67 65 3f 6e 3d"
NEVER = "11 09 74 63 6b 2f 6e 65 76 65 72"
HELLO = "02 00 02 02 03"


def closed(peer: EndpointClient) -> bool:
    return peer.endpoint.is_closed and isinstance(peer.events[-1], Closed)


def test_case_h01_the_hello_lists_the_configured_extensions() -> None:
    peer = EndpointClient(resumables=Resumables(), extensions=())
    assert peer.expect(H) == raw("02 00 00")
    assert EndpointClient(resumables=Resumables()).expect(H) == raw("02 00 03 01 02 03")
    assert EndpointClient().expect(H) == raw(HELLO)


def test_case_h02_the_server_sends_first_and_does_not_wait_forever() -> None:
    peer = EndpointClient()
    assert peer.sends() == raw(HELLO)
    assert peer.waits(9.9) == b""
    assert is_goodbye(peer.waits(0.2), LATE_HELLO)
    assert closed(peer)


def test_case_h02_a_client_does_not_wait_forever_either() -> None:
    peer = EndpointClient(EndpointRole.CLIENT)
    assert peer.sends() == raw("01 00 03 01 02 03")
    assert is_goodbye(peer.waits(10), LATE_HELLO)


def test_case_h03_unknown_extensions_are_passed_over() -> None:
    peer = EndpointClient()
    peer.expect("01 00 02 03 a8 46")
    assert peer.events == [SessionOpened(frozenset({3}))]


def test_case_h04_an_extension_may_be_listed_twice() -> None:
    peer = EndpointClient()
    peer.expect("01 00 02 03 03")
    assert peer.events == [SessionOpened(frozenset({3}))]


def test_case_h05_another_version_is_refused() -> None:
    peer = EndpointClient()
    assert is_goodbye(peer.expect("01 01 00 12 01 01"), "unsupported version 1")
    assert closed(peer)


def test_case_h06_a_subscription_sent_to_an_unsupported_version_fails() -> None:
    peer = EndpointClient(EndpointRole.CLIENT, extensions=())
    stream = peer.endpoint.subscribe("tck/never", 0)
    assert peer.sends() == raw("01 00 00 11 09 74 63 6b 2f 6e 65 76 65 72 01 00")
    assert is_goodbye(peer.expect("02 01 00"), "unsupported version 1")
    assert peer.reported(StreamFailed) == [StreamFailed(stream, "unsupported version 1; supported: 0")]
    assert closed(peer)


OPTIMISTIC = f"01 00 00 {RANGE} 31 01 01"


def test_case_h07_a_client_need_not_wait_for_the_hello() -> None:
    assert EndpointClient().expect(OPTIMISTIC) == raw(f"{HELLO} 81 01 00 82 01 01 31 86 01")


def test_case_h08_bytes_may_come_one_by_one() -> None:
    peer = EndpointClient()
    sent = b"".join(peer.expect(bytes([byte])) for byte in raw(OPTIMISTIC))
    assert sent == raw(f"{HELLO} 81 01 00 82 01 01 31 86 01")


@each_row(
    ("case", "role", "received"),
    [
        ("h09", EndpointRole.SERVER, "12 05 0a"),
        ("h10", EndpointRole.SERVER, "01 00 00 01 00 00"),
        ("h11", EndpointRole.SERVER, "02 00 00"),
        ("h11", EndpointRole.CLIENT, "01 00 00"),
        ("h12", EndpointRole.SERVER, "01 00 41"),
        ("v02", EndpointRole.SERVER, f"{H} 12 05 8a 00"),
        ("v03", EndpointRole.SERVER, f"{H} 12 05 80 80 80 80 80 80 80 80 80 01"),
        ("v05", EndpointRole.SERVER, f"{H} 13 80 80 80 80 10"),
        ("v07", EndpointRole.SERVER, f"{H} 55"),
        ("v08", EndpointRole.SERVER, f"{H} 00"),
        ("v09", EndpointRole.SERVER, f"{H} a8 00"),
        ("v10", EndpointRole.SERVER, f"{H} 7b 22 74 79 70 65 22"),
        ("v11", EndpointRole.SERVER, f"{H} 11 ff ff ff ff 07"),
        ("v12", EndpointRole.SERVER, f"{H} 11 02 c3 28 01 00"),
    ],
)
def test_cases_h09_to_h12_and_v02_to_v12_malformed_bytes_end_in_a_goodbye(
    case: str, role: EndpointRole, received: str
) -> None:
    for pieces in ([raw(received)], [bytes([byte]) for byte in raw(received)]):
        peer = EndpointClient(role)
        sent = b"".join(peer.expect(piece) for piece in pieces)
        assert is_goodbye(sent)
        assert closed(peer)
        assert peer.expect(H) == b""


def test_case_v01_ids_and_demand_take_as_many_bytes_as_they_need() -> None:
    peer = greeted()
    assert peer.expect(f"{NEVER} ac 02 00 12 ac 02 80 01") == raw("81 ac 02 00")
    (stream,) = peer.feeds
    assert peer.endpoint.session.capacity(stream) == 128


def test_case_v04_unbounded_demand() -> None:
    sent = greeted().expect(f"{RANGE} 32 01 ff ff ff ff ff ff ff ff 7f")
    assert sent == raw("81 01 00 82 01 01 31 82 01 01 32 86 01")


def test_case_v06_a_frame_that_never_ends_never_happened() -> None:
    peer = greeted()
    assert peer.expect("12 05") == b""
    peer.react(peer.endpoint.lose(peer.clock.now()))
    assert peer.events[-1] == Closed("the connection was lost")
    assert peer.sends() == b""


def test_case_v13_frames_that_come_together_are_processed_in_order() -> None:
    peer = greeted()
    assert peer.expect(f"{NEVER} 01 00 12 01 01 13 01") == raw("81 01 00")
    assert not peer.feeds


def test_a_frame_that_does_not_end_in_time_ends_the_connection() -> None:
    peer = greeted()
    assert peer.waits(10_000) == b""
    peer.expect("12")
    assert peer.waits(599) == b""
    assert is_goodbye(peer.waits(2), "idle")


def test_a_goodbye_before_the_hello_closes_with_its_reason() -> None:
    peer, _ = EndpointClient(EndpointRole.CLIENT, extensions=()), None
    peer.sends()
    assert peer.expect("03 04 62 75 73 79") == raw("03 02 6f 6b")
    assert peer.events == [Closed("busy")]


def test_a_server_without_a_place_for_sessions_offers_no_resume() -> None:
    peer = EndpointClient()
    peer.expect("01 00 01 01")
    peer.react(peer.endpoint.lose(peer.clock.now()))
    assert peer.reported(Interrupted) == []


def test_a_client_opens_its_session_after_the_hello() -> None:
    peer, _ = subscriber()
    assert peer.events == [SessionOpened(frozenset())]
