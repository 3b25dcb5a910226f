"""Sessions of Streamr: their clients, subscriptions and ends. Effects are compared as returned."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from mappings.streamr import errors
from mappings.streamr.errors import ErrorSubject
from mappings.streamr.frames import Subscribed, Unsubscribed, error_of
from mappings.streamr.requests import Disconnect, Publish, Resend, StreamrRequest, SubscribeRequest, Unsubscribe
from mappings.streamr.sessions import (
    Effect,
    EndSession,
    LeaveStream,
    SenderDecision,
    SendFrame,
    SessionEnd,
    SessionLimits,
    SessionTable,
    StreamrSession,
)
from mappings.streams.entry import All as Everything
from tests.support.clock import Clock
from tests.support.dice import examples

A, B = "r/a", "r/b"
PLANT = frozenset({"mqtt:plant"})
KEYED = PLANT | {"streamr:pump"}
TANK = ("tank", 0)


def subscribe(
    sessions: SessionTable, address: str = A, partition: int = 0, *, client: str | None = None, now: float = 0
) -> list[Effect]:
    return sessions.subscribe(SubscribeRequest("tank", partition), address, PLANT, KEYED, now, client=client)


def unsubscribe(
    sessions: SessionTable, address: str = A, partition: int | None = None, *, client: str | None = None
) -> list[Effect]:
    return sessions.unsubscribe(Unsubscribe("tank", partition), address, client=client)


def not_subscribed(address: str, partition: int = 0) -> list[Effect]:
    return [SendFrame(address, error_of(errors.not_subscribed("tank", partition), ErrorSubject("tank", partition)))]


def allowed(address: str) -> bool:
    return address.startswith("r/")


# --- what a session follows ---------------------------------------------------------------------------------------------


def test_case_s01_a_subscribe_is_answered_once_the_session_follows() -> None:
    assert subscribe(SessionTable()) == [SendFrame(A, Subscribed("tank", 0))]


def test_cases_s07_b09_b13_a_second_subscribe_is_answered_and_changes_nothing() -> None:
    sessions = SessionTable()
    subscribe(sessions)
    assert subscribe(sessions) == [SendFrame(A, Subscribed("tank", 0))]


def test_case_s08_one_unsubscribe_ends_two_subscribes() -> None:
    sessions = SessionTable()
    subscribe(sessions)
    subscribe(sessions)
    assert unsubscribe(sessions) == [LeaveStream(A, TANK), SendFrame(A, Unsubscribed("tank", 0))]
    assert unsubscribe(sessions) == not_subscribed(A)


def test_case_s09_only_ones_own_subscription_can_be_ended() -> None:
    sessions = SessionTable()
    subscribe(sessions, B)
    assert unsubscribe(sessions, A) == not_subscribed(A)
    session = sessions.get(B)
    assert session is not None
    assert list(session.subscriptions) == [TANK]


def test_case_s10_unsubscribing_without_a_subscription_returns_not_subscribed() -> None:
    assert unsubscribe(SessionTable()) == not_subscribed(A)
    assert unsubscribe(SessionTable(), A, 3) == not_subscribed(A, 3)


def test_case_s11_without_a_partition_the_only_one_is_meant() -> None:
    sessions = SessionTable()
    subscribe(sessions, A, 2)
    assert unsubscribe(sessions) == [LeaveStream(A, ("tank", 2)), SendFrame(A, Unsubscribed("tank", 2))]


def test_case_s12_without_a_partition_and_with_several_the_first_is_meant() -> None:
    sessions = SessionTable()
    subscribe(sessions, A, 1)
    subscribe(sessions, A, 0)
    assert unsubscribe(sessions) == [LeaveStream(A, TANK), SendFrame(A, Unsubscribed("tank", 0))]
    subscribe(sessions, A, 2)
    assert unsubscribe(sessions) == not_subscribed(A)
    assert unsubscribe(sessions, A, 0) == not_subscribed(A)


def test_cases_s13_s14_requests_take_effect_in_their_order() -> None:
    sessions = SessionTable()
    effects = [*subscribe(sessions), *unsubscribe(sessions), *subscribe(sessions)]
    assert [effect.frame for effect in effects if isinstance(effect, SendFrame)] == [
        Subscribed("tank", 0),
        Unsubscribed("tank", 0),
        Subscribed("tank", 0),
    ]
    assert [effect for effect in effects if not isinstance(effect, SendFrame)] == [LeaveStream(A, TANK)]
    assert sessions.row(A, TANK) is not None


def test_case_b01_two_addresses_are_two_sessions() -> None:
    sessions = SessionTable()
    for address in (A, B):
        subscribe(sessions, address)
    assert None not in (sessions.row(A, TANK), sessions.row(B, TANK))


def test_case_b02_two_writers_of_one_address_are_one_session() -> None:
    sessions = SessionTable()
    subscribe(sessions, A)
    assert subscribe(sessions, A) == [SendFrame(A, Subscribed("tank", 0))]
    assert sessions.followed_streams() == {"tank"}


def test_an_address_that_is_shared_by_client_ids_is_followed_until_the_last_has_left() -> None:
    sessions = SessionTable()
    subscribe(sessions, client="x")
    subscribe(sessions, client="y")
    assert unsubscribe(sessions, client="z") == not_subscribed(A)
    assert unsubscribe(sessions, client="x") == [SendFrame(A, Unsubscribed("tank", 0))]
    assert unsubscribe(sessions, client="x") == not_subscribed(A)
    assert unsubscribe(sessions, client="y") == [LeaveStream(A, TANK), SendFrame(A, Unsubscribed("tank", 0))]


def test_case_x06_a_subscriber_that_lost_read_permission_gets_an_error_and_leaves_the_stream() -> None:
    sessions = SessionTable()
    subscribe(sessions, A)
    subscribe(sessions, A, 1)
    sessions.subscribe(SubscribeRequest("tank"), B, PLANT, PLANT, 0)
    sessions.subscribe(SubscribeRequest("pump"), A, PLANT, KEYED, 0)
    asked = []

    def may_read(stream: str, subjects: frozenset[str]) -> bool:
        asked.append((stream, subjects))
        return "streamr:pump" not in subjects

    effects = sessions.recheck({"tank", "other"}, may_read)
    assert len(asked) == len(set(asked)) == 2, "once about the same"
    assert effects == [
        LeaveStream(A, TANK),
        SendFrame(A, error_of(errors.not_authorized("tank", 0), ErrorSubject("tank", 0))),
        LeaveStream(A, ("tank", 1)),
        SendFrame(A, error_of(errors.not_authorized("tank", 1), ErrorSubject("tank", 1))),
    ]
    assert sessions.recheck({"tank"}, may_read) == []


def test_case_x06_a_check_that_fails_in_between_changes_nothing() -> None:
    """Its repetition finds the same subscriptions to end."""
    sessions = SessionTable()
    subscribe(sessions, A)
    subscribe(sessions, B)
    answers = iter([False, None, False, False])

    def may_read(_stream: str, _subjects: frozenset[str]) -> bool:
        if (answer := next(answers)) is None:
            raise LookupError("a state cannot be read")
        return answer

    sessions.subscribe(SubscribeRequest("pump"), A, PLANT, KEYED, 0)
    with pytest.raises(LookupError):
        sessions.recheck({"tank", "pump"}, may_read)
    effects = sessions.recheck({"tank", "pump"}, may_read)
    assert sum(isinstance(effect, LeaveStream) for effect in effects) == 3


def test_the_latest_subscribe_request_sets_the_subjects_of_the_subscription() -> None:
    sessions = SessionTable()
    subscribe(sessions)
    sessions.subscribe(SubscribeRequest("tank"), A, PLANT, PLANT, 0)
    assert sessions.recheck({"tank"}, lambda _, subjects: subjects == PLANT) == []


def test_case_h03_a_session_that_only_resends_follows_nothing() -> None:
    sessions = SessionTable()
    assert sessions.open(A, PLANT, 0) is sessions.open(A, PLANT, 5)
    assert sessions.followed_streams() == set()


def test_limits_are_reported() -> None:
    sessions = SessionTable(SessionLimits(sessions=1, subscriptions=2))
    subscribe(sessions, A, 0)
    subscribe(sessions, A, 1)
    too_many = errors.limit_exceeded("2 subscriptions of a session")
    assert subscribe(sessions, A, 2) == [SendFrame(A, error_of(too_many, ErrorSubject("tank", 2)))]
    assert subscribe(sessions, A, 1) == [SendFrame(A, Subscribed("tank", 1))]
    too_many = errors.limit_exceeded("1 sessions of a connection")
    assert subscribe(sessions, B) == [SendFrame(B, error_of(too_many, ErrorSubject("tank", 0)))]
    assert sessions.open(B, PLANT, 0) is None


# --- whose it is --------------------------------------------------------------------------------------------------------

REQUESTS: list[StreamrRequest] = [
    Publish("tank", "{}"),
    SubscribeRequest("tank"),
    Unsubscribe("tank"),
    Resend("tank", 0, "a", Everything()),
    Disconnect(),
]


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda request: type(request).__name__)
def test_cases_b03_b04_without_a_reply_address_only_a_publish_is_carried_out(request_: StreamrRequest) -> None:
    decision = SessionTable().admit(request_, None, PLANT, 0, is_allowed=allowed)
    assert decision is (SenderDecision.SILENT if isinstance(request_, Publish) else SenderDecision.NOWHERE)


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda request: type(request).__name__)
def test_case_b05_an_address_that_is_not_meant_gets_no_session(request_: StreamrRequest) -> None:
    sessions = SessionTable()
    assert sessions.admit(request_, "other/a", PLANT, 0, is_allowed=allowed) is SenderDecision.OUTSIDE
    assert sessions.admit(request_, A, PLANT, 0, is_allowed=allowed) is SenderDecision.SERVED
    assert sessions.get("other/a") is sessions.get(A) is None


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda request: type(request).__name__)
def test_case_b06_a_request_of_another_subject_does_not_refresh_a_session(request_: StreamrRequest) -> None:
    clock = Clock()
    sessions = SessionTable()
    subscribe(sessions, now=clock.now())
    session = sessions.get(A)
    assert session is not None
    seen = session.seen
    decision = sessions.admit(request_, A, frozenset({"mqtt:other"}), clock.advance(60), is_allowed=allowed)
    assert decision is SenderDecision.TAKEN
    assert session.seen == seen
    assert sessions.admit(request_, A, PLANT, clock.now(), is_allowed=allowed) is SenderDecision.SERVED


# --- what ends it -------------------------------------------------------------------------------------------------------


def test_case_b07_a_client_that_says_goodbye_is_left_without_a_frame() -> None:
    sessions = SessionTable()
    subscribe(sessions, A, 0)
    subscribe(sessions, A, 1)
    assert sessions.end(A, SessionEnd.DISCONNECTED) == [
        LeaveStream(A, TANK),
        LeaveStream(A, ("tank", 1)),
        EndSession(A, SessionEnd.DISCONNECTED),
    ]
    assert sessions.end(A, SessionEnd.DISCONNECTED) == []


def test_case_b08_a_session_without_requests_ends() -> None:
    clock = Clock()
    sessions = SessionTable(SessionLimits(idle_timeout=60))
    subscribe(sessions, A, now=clock.now())
    subscribe(sessions, B, now=clock.advance(10))
    assert sessions.idle(clock.advance(49)) == []
    assert sessions.idle(clock.advance(1)) == [LeaveStream(A, TANK), EndSession(A, SessionEnd.IDLE)]
    assert sessions.idle(clock.advance(10)) == [LeaveStream(B, TANK), EndSession(B, SessionEnd.IDLE)]


def test_case_b09_any_request_keeps_a_session_alive() -> None:
    clock = Clock()
    sessions = SessionTable(SessionLimits(idle_timeout=60))
    subscribe(sessions, A, now=clock.now())
    subscribe(sessions, B, now=clock.now())
    for request in REQUESTS:
        now = clock.advance(50)
        assert sessions.admit(request, A, PLANT, now, is_allowed=allowed) is SenderDecision.SERVED
        assert all(
            effect == LeaveStream(B, TANK) or effect == EndSession(B, SessionEnd.IDLE) for effect in sessions.idle(now)
        )
    assert [sessions.get(address) is not None for address in (A, B)] == [True, False]


def test_a_session_with_undelivered_messages_for_30_seconds_ends() -> None:
    clock = Clock()
    sessions = SessionTable()
    subscribe(sessions, now=clock.now())
    assert [sessions.undelivered(A, clock.advance(1)) for _ in range(20)] == [[]] * 20
    assert sessions.undelivered(A, clock.advance(11)) == [LeaveStream(A, TANK), EndSession(A, SessionEnd.UNDELIVERED)]
    assert sessions.undelivered(A, clock.now()) == []


def test_a_session_ends_only_after_three_undelivered_messages_in_a_row() -> None:
    clock = Clock()
    sessions = SessionTable()
    subscribe(sessions, now=clock.now())
    assert sessions.undelivered(A, clock.now()) == sessions.undelivered(A, clock.advance(40)) == []
    sessions.reader_seen(A)
    sessions.reader_seen(B)
    assert sessions.undelivered(A, clock.now()) == sessions.undelivered(A, clock.advance(40)) == []
    assert sessions.undelivered(A, clock.now())[-1] == EndSession(A, SessionEnd.UNDELIVERED)


# --- restarts -----------------------------------------------------------------------------------------------------------


def test_case_b10_sessions_keep_their_subscriptions_after_a_restart() -> None:
    before = SessionTable()
    subscribe(before, A, 0, client="x")
    subscribe(before, A, 2)
    assert before.row(B, TANK) is before.row(A, ("tank", 1)) is None
    rows = [row for spot in (TANK, ("tank", 2)) if (row := before.row(A, spot)) is not None]
    assert len(rows) == 2
    after = SessionTable()
    assert [after.restore(row, 500) for row in rows] == [True, True]
    assert [after.restore(row, 600) for row in rows] == [False, False]
    assert [after.row(A, row.stream_partition) for row in rows] == rows
    assert after.admit(Unsubscribe("tank"), A, frozenset({"x"}), 0, is_allowed=allowed) is SenderDecision.TAKEN
    assert unsubscribe(after, A, 0, client="x")[0] == LeaveStream(A, TANK)


# --- any input -----------------------------------------------------------------------------------------------------------


class RandomCourse(RuleBasedStateMachine):
    """Random calls in any order: the effects add up to the subscriptions of the sessions."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.sessions = SessionTable(SessionLimits(sessions=3, subscriptions=3, idle_timeout=100))
        self.followed: set[tuple[str, tuple[str, int]]] = set()

    def apply(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, SendFrame) and isinstance(effect.frame, Subscribed):
                self.followed.add((effect.address, (effect.frame.stream, effect.frame.partition)))
            elif isinstance(effect, LeaveStream):
                self.followed.remove((effect.address, effect.stream_partition))
            elif isinstance(effect, EndSession):
                assert effect.address not in {address for address, _ in self.followed}

    @rule(
        address=st.sampled_from("abcd"),
        partition=st.integers(0, 3),
        client=st.sampled_from([None, "x", "y"]),
        owner=st.sampled_from(["one", "two"]),
        kind=st.sampled_from(["subscribe", "unsubscribe", "unsubscribe all"]),
    )
    def ask(self, address: str, partition: int, client: str | None, owner: str, kind: str) -> None:
        owners, now = frozenset({owner}), self.clock.now()
        request: SubscribeRequest | Unsubscribe = SubscribeRequest("s", partition)
        if kind != "subscribe":
            request = Unsubscribe("s", partition if kind == "unsubscribe" else None)
        if self.sessions.admit(request, address, owners, now, is_allowed=lambda _: True) is not SenderDecision.SERVED:
            return
        if isinstance(request, SubscribeRequest):
            effects = self.sessions.subscribe(request, address, owners, owners, now, client=client)
        else:
            effects = self.sessions.unsubscribe(request, address, client=client)
        assert sum(isinstance(effect, SendFrame) for effect in effects) == 1
        self.apply(effects)

    @rule(seconds=st.integers(0, 120))
    def wait(self, seconds: int) -> None:
        self.apply(self.sessions.idle(self.clock.advance(seconds)))

    @rule(address=st.sampled_from("abcd"))
    def end(self, address: str) -> None:
        self.apply(self.sessions.end(address, SessionEnd.REFUSED))

    @rule(owner=st.sampled_from(["one", "two"]))
    def revoke(self, owner: str) -> None:
        self.apply(self.sessions.recheck({"s"}, lambda _, subjects: owner not in subjects))

    @invariant()
    def subscriptions_match_the_reported_ones(self) -> None:
        found: list[StreamrSession] = [session for each in "abcd" if (session := self.sessions.get(each)) is not None]
        assert {(session.address, spot) for session in found for spot in session.subscriptions} == self.followed
        assert len(found) <= 3
        assert all(len(session.subscriptions) <= 3 for session in found)


RandomCourse.TestCase.settings = settings(max_examples=examples(40), stateful_step_count=30, deadline=None)
TestAnyCourse = RandomCourse.TestCase
