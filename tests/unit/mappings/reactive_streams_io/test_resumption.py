"""Sessions of resume tokens: reactive-streams-io, resume."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from mappings.reactive_streams_io.events import StreamFailed
from mappings.reactive_streams_io.frames import SubscribeFrame
from mappings.reactive_streams_io.limits import EndpointLimits
from mappings.reactive_streams_io.resumption import GIVEN_UP, Resumables, ResumeToken
from mappings.reactive_streams_io.session import RsioSession


class Connection:
    def __init__(self, subject: str = "ada", expires: float | None = None) -> None:
        self.session = RsioSession(EndpointLimits(), keeps_copies=True)
        self.subject = subject
        self.offered = frozenset({1})
        self._expires = expires

    def expires(self) -> float | None:
        return self._expires

    def yield_session(self, now: float) -> None:
        self.session = RsioSession(EndpointLimits(), keeps_copies=False)


@pytest.fixture
def resumables() -> Resumables:
    tokens: Iterator[bytes] = (bytes([number]) * 16 for number in range(1, 256))
    return Resumables(EndpointLimits(resumable=2), lambda: next(tokens))


def test_a_token_names_its_session_for_its_subject_alone(resumables: Resumables) -> None:
    connection = Connection()
    token = resumables.grant(connection)
    assert resumables.claim(token, "ada", 0) is connection
    assert resumables.claim(token, "eve", 0) is None
    assert resumables.claim(bytes(16), "ada", 0) is None


def test_a_new_token_voids_the_one_before(resumables: Resumables) -> None:
    connection = Connection()
    old = resumables.grant(connection)
    new = resumables.grant(connection)
    assert resumables.claim(old, "ada", 0) is None
    assert resumables.claim(new, "ada", 0) is connection
    resumables.void(connection.session)
    resumables.void(connection.session)
    assert resumables.claim(new, "ada", 0) is None
    assert not resumables.has_session(connection.session)


def test_the_previous_token_is_valid_until_the_latest_one_is_used(resumables: Resumables) -> None:
    connection = Connection()
    first = resumables.grant(connection)
    second = resumables.grant(connection, first)
    assert resumables.claim(first, "ada", 0) is resumables.claim(second, "ada", 0) is connection
    resumables.used(connection.session)
    resumables.used(connection.session)
    assert resumables.claim(first, "ada", 0) is None
    assert resumables.claim(second, "ada", 0) is connection
    third = resumables.grant(connection, second)
    resumables.void(connection.session)
    assert [resumables.claim(token, "ada", 0) for token in (second, third)] == [None, None]
    resumables.used(connection.session)


def test_a_lost_session_is_kept_for_its_lifetime(resumables: Resumables) -> None:
    connection = Connection()
    token = resumables.grant(connection)
    stream = connection.session.subscribe("a", 0)
    resumables.lose(connection.session, 60)
    assert resumables.claim(token, "ada", 60) is connection
    assert resumables.expire(60) == []
    assert resumables.claim(token, "ada", 60.1) is None
    assert resumables.expire(60.1) == [(connection.session, [StreamFailed(stream, GIVEN_UP)])]
    assert resumables.expire(60.1) == []


def test_a_session_expires_if_no_loss_is_noticed(resumables: Resumables) -> None:
    token = resumables.grant(Connection(expires=10))
    assert resumables.claim(token, "ada", 10) is not None
    assert resumables.claim(token, "ada", 11) is None


def test_the_oldest_are_dropped_if_there_are_too_many(resumables: Resumables) -> None:
    connections = [Connection() for _ in range(4)]
    for connection in connections:
        resumables.grant(connection)
        resumables.lose(connection.session, 60)
    assert [session for session, _ in resumables.expire(0)] == [each.session for each in connections[:2]]
    assert "2 tokens, 2 lost" in repr(resumables)


def test_those_without_streams_are_given_up_first(resumables: Resumables) -> None:
    connections = [Connection() for _ in range(4)]
    for number, connection in enumerate(connections):
        if number in (0, 2):
            connection.session.subscribe("a", 0)
        resumables.grant(connection)
        resumables.lose(connection.session, 60)
    assert [session for session, _ in resumables.expire(0)] == [connections[1].session, connections[3].session]


def test_a_resumed_or_expired_session_frees_its_slot(resumables: Resumables) -> None:
    connections = [Connection() for _ in range(4)]
    tokens = [resumables.grant(connection) for connection in connections]
    for connection in connections[:2]:
        resumables.lose(connection.session, 60)
    resumables.grant(connections[0], tokens[0])
    resumables.lose(connections[2].session, 60)
    assert resumables.expire(0) == []
    resumables.lose(connections[3].session, 60)
    assert resumables.claim(tokens[1], "ada", 0) is None
    assert [session for session, _ in resumables.expire(0)] == [connections[1].session]
    assert [resumables.claim(token, "ada", 0) for token in tokens[2:]] == connections[2:]


def test_a_session_that_is_lost_with_thousands_of_others_is_measured_a_few_times(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    measured: list[RsioSession] = []
    raw: Callable[[RsioSession], int] = vars(RsioSession)["held_bytes"].fget

    def measure(session: RsioSession) -> int:
        measured.append(session)
        return raw(session)

    monkeypatch.setattr(RsioSession, "held_bytes", property(measure))
    resumables = Resumables()
    connections = [Connection() for _ in range(5000)]
    for connection in connections:
        resumables.grant(connection)
        resumables.lose(connection.session, 60)
    kept = EndpointLimits().resumable
    assert len(resumables.expire(0)) == len(connections) - kept
    assert len(measured) <= 2 * (len(connections) + kept)


def test_elements_offered_to_a_lost_session_count_toward_the_byte_limit() -> None:
    resumables = Resumables(EndpointLimits(resumable_bytes=100))
    connections = [Connection() for _ in range(2)]
    for connection in connections:
        connection.session.receive(SubscribeFrame("a", 1, 9))
        connection.session.accept(1, 0)
        resumables.grant(connection)
        resumables.lose(connection.session, 60)
    assert resumables.expire(0) == []
    connections[1].session.offer(1, [b"x" * 95])
    assert [session for session, _ in resumables.expire(0)] == [connections[0].session]


def test_a_session_that_cannot_be_claimed_is_given_up(resumables: Resumables) -> None:
    connection = Connection()
    resumables.grant(connection)
    resumables.give_up(connection.session)
    resumables.give_up(Connection().session)
    assert [session for session, _ in resumables.expire(0)] == [connection.session]


def test_tokens_cannot_be_guessed() -> None:
    resumables = Resumables()
    tokens = {resumables.grant(Connection()) for _ in range(100)}
    assert len(tokens) == 100
    assert {len(token) for token in tokens} == {16}


def test_a_client_may_give_up() -> None:
    session = RsioSession(EndpointLimits(), keeps_copies=True)
    stream = session.subscribe("a", 0)
    ticket = ResumeToken(session, bytes(16), frozenset({1}))
    assert ticket.give_up() == [StreamFailed(stream, GIVEN_UP)]
    assert bytes(16).hex() not in repr(ticket)
