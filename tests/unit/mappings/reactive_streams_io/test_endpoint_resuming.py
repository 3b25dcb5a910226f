"""Going on over another transport: the conformance suite of reactive-streams-io, 15.10 (R)."""

from __future__ import annotations

from typing import Any

import pytest

from mappings.reactive_streams_io.endpoint import EndpointRole, EndpointState
from mappings.reactive_streams_io.events import (
    Closed,
    Completed,
    Interrupted,
    NotResumed,
    Resumed,
    StreamAccepted,
    StreamFailed,
)
from mappings.reactive_streams_io.frames import (
    CancelFrame,
    Extension,
    Frame,
    OnComplete,
    OnNextLastPart,
    OnNextPart,
    Resume,
    ResumeFail,
    ResumeGrant,
    SubscribeFrame,
    encode,
)
from mappings.reactive_streams_io.limits import EndpointLimits
from mappings.reactive_streams_io.resumption import Resumables
from tests.support.clock import Clock
from tests.support.reactive_streams_io.conversation import EndpointClient, is_goodbye, pipe
from tests.support.reactive_streams_io.examples import decoder, raw

RANGE = "11 0d 74 63 6b 2f 72 61 6e 67 65 3f 6e 3d"
HELLO = "01 00 01 01"


class Server:
    """A server whose connections share their resumable sessions, as its application does their streams."""

    def __init__(self, **limits: Any) -> None:
        self.clock = Clock()
        self.limits = EndpointLimits(**limits)
        self.resumables = Resumables(self.limits)
        self.peers: dict[int, EndpointClient] = {}

    def connect(self, subject: str = "ada", **options: Any) -> EndpointClient:
        peer = EndpointClient(
            clock=self.clock, resumables=self.resumables, subject=subject, limits=self.limits, **options
        )
        peer.sends()
        return peer

    def expect(self, peer: EndpointClient, sent: str | bytes) -> bytes:
        """Receive bytes from a connection; a resumed session moves its streams to it. Return the output."""
        self.peers[peer.endpoint.session.key] = peer
        events = peer.endpoint.receive(raw(sent) if isinstance(sent, str) else sent, self.clock.now())
        for event in events:
            if isinstance(event, Resumed):
                peer.feeds = self.peers[event.session].feeds
        peer.react(events)
        return peer.sends()


def frames(sent: bytes, sizes: dict[int, int] | None = None) -> list[Frame]:
    reader = decoder({1: 0, 5: 0, 6: 2} if sizes is None else sizes)
    found = list(reader.feed(sent))
    assert not reader.waiting
    return found


def granted(sent: bytes) -> bytes:
    """The token of the only grant."""
    (grant,) = [frame for frame in frames(sent) if isinstance(frame, ResumeGrant)]
    return grant.token


def started_stream(server: Server) -> tuple[EndpointClient, bytes]:
    """Run case R02 up to its loss, with demand 4 of nine elements; return the peer and the token."""
    peer = server.connect()
    token = granted(server.expect(peer, HELLO))
    sent = server.expect(peer, f"{RANGE} 39 01 04")
    assert sent.endswith(raw("81 01 00 82 01 01 31 82 01 01 32 82 01 01 33 82 01 01 34"))
    return peer, token


def lost(server: Server, peer: EndpointClient) -> None:
    peer.react(peer.endpoint.lose(server.clock.now()))
    assert isinstance(peer.events[-1], Interrupted)


def resume(server: Server, token: bytes, received: int, first: int, **options: Any) -> tuple[EndpointClient, bytes]:
    peer = server.connect(**options)
    server.expect(peer, HELLO)
    return peer, server.expect(peer, encode(Resume(token, received, first)))


def is_refused(sent: bytes) -> bool:
    return isinstance(frames(sent)[0], ResumeFail)


def test_case_r01_the_server_grants_a_token() -> None:
    server = Server()
    peer = server.connect()
    (grant,) = frames(server.expect(peer, HELLO))
    assert grant == ResumeGrant(granted(encode(grant)), 60_000, 1024)
    assert len(granted(encode(grant))) == 16


def test_case_r02_frames_that_did_not_arrive_are_sent_again() -> None:
    server = Server()
    old, token = started_stream(server)
    lost(server, old)
    peer, sent = resume(server, token, 3, 1)
    assert sent.startswith(raw("a2 01 82 01 01 33 82 01 01 34 a0"))
    assert granted(sent) != token
    assert peer.reported(Resumed) == [Resumed(old.endpoint.session.key)]
    assert not old.cancelled
    assert server.expect(peer, "12 01 02") == raw("82 01 01 35 82 01 01 36")


def test_case_r03_the_client_sends_frames_again_that_the_server_did_not_receive() -> None:
    server = Server()
    old = server.connect()
    token = granted(server.expect(old, HELLO))
    lost(server, old)
    peer, sent = resume(server, token, 0, 1)
    assert sent.startswith(raw("a2 00"))
    assert server.expect(peer, f"{RANGE} 31 01 01") == raw("81 01 00 82 01 01 31 86 01")


def test_case_r04_an_unknown_or_expired_token_is_refused_and_the_connection_usable() -> None:
    server = Server()
    old, token = started_stream(server)
    lost(server, old)
    server.clock.advance(60.1)
    for wrong in (token, bytes(16)):
        peer, sent = resume(server, wrong, 3, 1)
        assert is_refused(sent)
        assert granted(sent)
        assert server.expect(peer, f"{RANGE} 31 01 01") == raw("81 01 00 82 01 01 31 86 01")


def test_case_r05_the_token_of_another_subject_is_refused_and_stays_good() -> None:
    server = Server()
    old, token = started_stream(server)
    lost(server, old)
    assert is_refused(resume(server, token, 3, 1, subject="eve")[1])
    assert not is_refused(resume(server, token, 3, 1)[1])


def test_case_r06_a_token_is_valid_once() -> None:
    server = Server()
    old, token = started_stream(server)
    lost(server, old)
    peer, sent = resume(server, token, 3, 1)
    assert not is_refused(sent)
    server.expect(peer, "12 01 01")
    lost(server, peer)
    assert is_refused(resume(server, token, 3, 1)[1])


def test_case_r06_a_token_is_valid_again_if_its_reply_was_lost() -> None:
    server = Server()
    old, token = started_stream(server)
    lost(server, old)
    peers = []
    for is_noticed in (True, False, True):
        peer, sent = resume(server, token, 3, 1)
        assert sent.startswith(raw("a2 01 82 01 01 33 82 01 01 34 a0"))
        if is_noticed:
            lost(server, peer)
        peers.append(peer)
    assert is_goodbye(peers[1].sends(), "resumed elsewhere")
    assert is_refused(resume(server, token, 3, 1, subject="eve")[1])
    for each in peers:
        assert not each.cancelled


def test_the_newest_token_is_valid_before_its_acknowledgement() -> None:
    server = Server()
    old, token = started_stream(server)
    lost(server, old)
    peer, sent = resume(server, token, 3, 1)
    lost(server, peer)
    assert not is_refused(resume(server, granted(sent), 5, 1)[1])
    assert is_refused(resume(server, token, 5, 1)[1])


def test_a_client_sends_nothing_before_it_has_the_next_token_and_then_confirms_it() -> None:
    server = Server()
    old, _, stream = interrupted(server)
    client, peer = reconnect(server, old)
    answered = server.expect(peer, client.expect("02 00 01 01"))
    first, *_ = frames(answered)
    assert isinstance(first, ResumeGrant)
    answered = answered.removeprefix(encode(first))
    grant = answered.index(b"\xa0\x10")
    before = client.endpoint.ticket()
    client.endpoint.session.request(stream, 5)
    assert client.expect(answered[:grant]) == b""
    assert client.elements(stream) == [b"3", b"4"]
    after = client.endpoint.ticket()
    assert before is not None
    assert after is not None
    assert after.token == before.token
    assert client.expect(answered[grant:]) == raw("a4 05 12 01 05")
    granted_last = client.endpoint.ticket()
    assert granted_last is not None
    assert granted_last.token == granted(answered[grant:])


def test_a_client_without_another_token_sends_after_a_while() -> None:
    server = Server()
    old, _, stream = interrupted(server)
    client, _ = reconnect(server, old)
    assert client.expect("02 00 01 01")
    assert client.expect("a2 01") == b""
    client.endpoint.session.request(stream, 5)
    assert client.waits(9) == b""
    assert client.waits(2) == raw("12 01 05")
    assert client.endpoint.state is EndpointState.OPEN


def test_a_token_does_not_resume_its_own_connection() -> None:
    server = Server()
    peer = server.connect()
    token = granted(server.expect(peer, HELLO))
    assert is_refused(server.expect(peer, encode(Resume(token, 0, 1))))
    assert not peer.endpoint.is_closed


def interrupted(server: Server, demand: int = 4) -> tuple[EndpointClient, EndpointClient, int]:
    """Return client, server and stream after a transport was lost with two elements on their way."""
    client, peer = (
        EndpointClient(EndpointRole.CLIENT, server.clock, limits=server.limits, extensions=(Extension.RESUME,)),
        server.connect(),
    )
    client.expect(raw("02 00 01 01") + server.expect(peer, client.sends()))
    stream = client.endpoint.subscribe("tck/range?n=9", demand)
    sent = server.expect(peer, client.sends())
    client.expect(sent[:11])
    assert client.elements(stream) == [b"1", b"2"]
    for each in (client, peer):
        lost(server, each)
    return client, peer, stream


def reconnect(server: Server, old: EndpointClient) -> tuple[EndpointClient, EndpointClient]:
    ticket = old.endpoint.ticket()
    assert ticket is not None
    client = EndpointClient(EndpointRole.CLIENT, server.clock, limits=server.limits, ticket=ticket)
    return client, server.connect(extensions=(Extension.RESUME,))


def join(server: Server, client: EndpointClient, peer: EndpointClient) -> bytes:
    """Carry the hellos and all that follows; return what the server sent after its hello and first grant."""
    sent = client.expect(raw("02 00 01 01") + server.expect(peer, client.sends()))
    answers = b""
    while sent:
        answer = server.expect(peer, sent)
        answers += answer
        sent = client.expect(answer)
    return answers


def test_case_r07_a_client_waits_for_the_hello_before_it_resumes() -> None:
    server = Server()
    old, _, stream = interrupted(server)
    client, peer = reconnect(server, old)
    old.endpoint.session.request(stream, 5)
    assert client.sends() == raw("01 00 01 01")
    asked = client.expect("02 00 01 01")
    assert asked[0] == 0xA1
    assert client.endpoint.state is EndpointState.RESUMING
    # A server cannot tell, and takes both frames in one piece.
    answered = server.expect(peer, raw("01 00 01 01") + asked)
    again = client.expect(answered)
    assert again == raw("a4 05 12 01 05")
    client.expect(server.expect(peer, again))
    assert client.elements(stream) == [str(number).encode() for number in range(3, 10)]
    assert client.reported(Completed) == [Completed(stream)]
    assert client.reported(Resumed) == [Resumed(client.endpoint.session.key)]
    assert client.endpoint.ticket() is not None


def test_case_r08_resume_after_another_core_frame_is_fatal() -> None:
    server = Server()
    peer, token = started_stream(server)
    assert is_goodbye(server.expect(peer, encode(Resume(token, 3, 1))), "protocol error: an unexpected resume frame")


@pytest.mark.parametrize("ours", [True, False])
def test_case_r09_a_goodbye_voids_the_token(ours: bool) -> None:
    server = Server()
    old, token = started_stream(server)
    if ours:
        old.react(old.endpoint.close(server.clock.now()))
        old.sends()
    server.expect(old, "03 00")
    assert old.endpoint.is_closed
    assert is_refused(resume(server, token, 3, 1)[1])


def test_case_r10_more_frames_than_the_window_are_lost_for_good() -> None:
    server = Server(window=3)
    old, token = started_stream(server)
    lost(server, old)
    assert is_refused(resume(server, token, 1, 1)[1])
    ((session, ended),) = server.resumables.expire(server.clock.now())
    assert session is old.endpoint.session
    assert len(ended) == 1
    server = Server(window=3)
    old, token = started_stream(server)
    lost(server, old)
    assert not is_refused(resume(server, token, 2, 1)[1])


def test_case_r11_acknowledged_frames_are_forgotten() -> None:
    server = Server()
    old, token = started_stream(server)
    server.expect(old, "a4 03")
    assert old.endpoint.session.first_available == 4
    lost(server, old)
    assert is_refused(resume(server, token, 2, 1)[1])


def test_an_acknowledgement_of_unsent_frames_is_a_protocol_error() -> None:
    server = Server()
    old, _ = started_stream(server)
    assert is_goodbye(server.expect(old, "a4 06"), "protocol error: an acknowledgement of frames")


def test_case_r12_an_open_transport_is_ended_when_its_session_continues_elsewhere() -> None:
    server = Server()
    old, token = started_stream(server)
    peer, sent = resume(server, token, 5, 1)
    assert sent.startswith(raw("a2 01"))
    assert is_goodbye(old.sends(), "resumed elsewhere")
    assert old.endpoint.take_events() == [Closed("resumed elsewhere")]
    assert old.endpoint.is_closed
    assert not old.cancelled
    assert server.expect(peer, "12 01 09").endswith(raw("86 01"))


def test_case_r13_elements_of_a_fixed_size_are_understood_after_a_resume() -> None:
    server = Server()
    client, peer = EndpointClient(EndpointRole.CLIENT, server.clock, extensions=(Extension.RESUME,)), server.connect()
    client.expect(raw("02 00 01 01") + server.expect(peer, client.sends()))
    stream = client.endpoint.subscribe("tck/fixed?n=5&size=2", 2)
    client.expect(server.expect(peer, client.sends()))
    for each in (client, peer):
        lost(server, each)
    again, other = reconnect(server, client)
    join(server, again, other)
    again.endpoint.session.request(stream, 9)
    sent = server.expect(other, again.sends())
    assert sent == raw("83 01 03 00 03 00 04 00 05 86 01")
    again.expect(sent)
    assert again.elements(stream) == [b"\x00\x03", b"\x00\x04", b"\x00\x05"]


def test_case_r14_a_split_element_continues_with_its_next_part() -> None:
    server = Server()
    client, peer = EndpointClient(EndpointRole.CLIENT, server.clock, extensions=(Extension.RESUME,)), server.connect()
    client.expect(raw("02 00 01 01") + server.expect(peer, client.sends()))
    stream = client.endpoint.subscribe("tck/big?bytes=200000", 1)
    sent = server.expect(peer, client.sends())
    client.expect(sent[:70_000])
    for each in (client, peer):
        lost(server, each)
    again, other = reconnect(server, client)
    rest = join(server, again, other)
    assert [type(frame) for frame in frames(rest)][1:5] == [OnNextPart, OnNextPart, OnNextLastPart, OnComplete]
    assert again.elements(stream) == [b"x" * 200_000]


def test_other_extensions_than_before_are_refused() -> None:
    server = Server()
    old, token = started_stream(server)
    lost(server, old)
    peer = server.connect()
    server.expect(peer, "01 00 02 01 02")
    assert is_refused(server.expect(peer, encode(Resume(token, 3, 1))))
    assert len(server.resumables.expire(server.clock.now())) == 1


def test_frames_that_the_client_has_lost_cannot_be_resumed() -> None:
    server = Server()
    old, token = started_stream(server)
    lost(server, old)
    assert is_refused(resume(server, token, 3, 3)[1])


def test_a_client_whose_session_has_expired_starts_a_new_session() -> None:
    server = Server()
    old, _, stream = interrupted(server)
    server.clock.advance(61)
    client, peer = reconnect(server, old)
    join(server, client, peer)
    (refused,) = client.reported(NotResumed)
    assert client.reported(StreamFailed) == [StreamFailed(stream, refused.reason)]
    again = client.endpoint.subscribe("tck/range?n=2", 2)
    client.expect(server.expect(peer, client.sends()))
    assert client.elements(again) == [b"1", b"2"]
    assert client.endpoint.ticket() is not None


def test_a_server_that_resumes_no_more_ends_the_old_streams() -> None:
    server = Server()
    old, _, stream = interrupted(server)
    client, _ = reconnect(server, old)
    client.expect("02 00 00")
    assert [event.stream for event in client.reported(StreamFailed)] == [stream]
    assert client.endpoint.state is EndpointState.OPEN


def test_a_client_that_is_cut_off_while_it_waits_tries_again() -> None:
    server = Server()
    old, _, stream = interrupted(server)
    client, _ = reconnect(server, old)
    client.sends()
    for is_late in (False, True, False):
        if is_late:
            # No client has sent a hello.
            assert client.waits(11) == b""
            assert isinstance(client.events[-1], Interrupted)
        else:
            lost(server, client)
        client, peer = reconnect(server, client)
        client.sends()
    server.expect(peer, "01 00 01 01")
    client.expect("02 00 01 01")
    assert client.waits(11) == b""
    assert isinstance(client.events[-1], Interrupted)
    client, peer = reconnect(server, client)
    join(server, client, peer)
    assert client.elements(stream) == [b"3", b"4"]


def test_a_server_subscription_sent_before_a_resume_applies_only_without_the_resume() -> None:
    server = Server()
    for is_known in (True, False):
        old, _, _ = interrupted(server)
        if not is_known:
            server.clock.advance(61)
        client, peer = reconnect(server, old)
        client.sends()
        asked = raw("02 00 01 01") + server.expect(peer, "01 00 01 01")
        ingest = peer.endpoint.subscribe("tck/range?n=1", 1)
        resumed = client.expect(asked + peer.sends())
        answered = server.expect(peer, resumed)
        started_stream = client.expect(answered)
        assert peer.reported(StreamFailed) == (
            [StreamFailed(ingest, "another session was resumed here")] if is_known else []
        )
        peer.expect(started_stream)
        assert peer.reported(StreamAccepted) == ([] if is_known else [StreamAccepted(ingest, 0)])


@pytest.mark.parametrize(
    "sent", [encode(SubscribeFrame("x" * 100, 1, 0)) * 20, encode(CancelFrame(1)) * 100, encode(OnComplete(1))], ids=len
)
def test_input_before_the_reply_to_a_resume_is_bounded(sent: bytes) -> None:
    server = Server(backlog=2000)
    old, _, stream = interrupted(server)
    client, _ = reconnect(server, old)
    client.expect("02 00 01 01")
    assert is_goodbye(client.expect(raw("81 01 00") * (sent[0] == 0x86) + sent))
    assert [event.stream for event in client.reported(StreamFailed)] == [stream]


def test_frames_are_acknowledged_every_quarter_of_the_window() -> None:
    server = Server(window=8)
    client = EndpointClient(EndpointRole.CLIENT, server.clock, limits=server.limits, extensions=(Extension.RESUME,))
    peer = server.connect()
    client.expect(raw("02 00 01 01") + server.expect(peer, client.sends()))
    stream = client.endpoint.subscribe("tck/range?n=100", 100)
    pipe(client, peer)
    assert len(client.elements(stream)) == 100
    assert peer.endpoint.session.sent == 102
    assert peer.endpoint.session.first_available > 100
    assert client.endpoint.session.held_bytes < 100


def test_lost_sessions_are_bounded_in_number() -> None:
    server = Server(resumable=3)
    peers = [started_stream(server)[0] for _ in range(5)]
    for peer in peers:
        lost(server, peer)
    gone = [session for session, _ in server.resumables.expire(server.clock.now())]
    assert gone == [peer.endpoint.session for peer in peers[:2]]


def test_lost_sessions_are_bounded_in_bytes() -> None:
    server = Server(resumable_bytes=50)
    peers = [started_stream(server)[0] for _ in range(4)]
    assert peers[0].endpoint.session.held_bytes == 19
    for peer in peers:
        lost(server, peer)
    assert len(server.resumables.expire(server.clock.now())) == 2


@pytest.mark.parametrize(("hello", "lifetime"), [(HELLO, 60), ("01 00 02 01 02", 150)], ids=["", "keepalive"])
@pytest.mark.parametrize("late", [False, True])
def test_the_lifetime_of_a_message_session_starts_at_its_last_frame(hello: str, lifetime: int, late: bool) -> None:
    server = Server()
    old = server.connect(has_messages=True)
    sent = server.expect(old, hello)
    (grant,) = frames(sent[6:])
    assert isinstance(grant, ResumeGrant)
    assert grant.lifetime == lifetime * 1000
    old.waits(lifetime + 1 if late else lifetime - 1)
    gone = server.resumables.expire(server.clock.now())
    assert len(gone) == (late and lifetime > 90)
    peer = server.connect(has_messages=True)
    server.expect(peer, hello)
    assert is_refused(server.expect(peer, encode(Resume(grant.token, 0, 1)))) is late


def test_the_lifetime_of_a_message_session_restarts_at_a_noticed_loss() -> None:
    for late in (False, True):
        server = Server()
        old = server.connect(has_messages=True, is_connected=True)
        token = granted(server.expect(old, "01 00 02 01 02"))
        server.clock.advance(70)
        lost(server, old)
        server.clock.advance(61 if late else 59)
        peer = server.connect(has_messages=True, is_connected=True)
        server.expect(peer, "01 00 02 01 02")
        assert is_refused(server.expect(peer, encode(Resume(token, 0, 1)))) is late


def test_input_from_the_old_transport_is_ignored_after_a_resume() -> None:
    server = Server()
    old, token = started_stream(server)
    peer, _ = resume(server, token, 5, 1)
    old.sends()
    received = peer.endpoint.session.received
    assert old.expect(encode(SubscribeFrame("tck/never", 9, 0))) == b""
    assert peer.endpoint.session.received == received
