"""The sessions of one connection and their work in progress (Streamr protocol, sessions).

`mappings.streamr.sessions` decides to which session a request belongs, its subscriptions and its end. This module acts: it
opens and ends subscriptions and sends frames. A confirmed subscription is durable, and is resumed after a restart
(`connectivity.sessions.streamr.persistence`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import structlog

from connectivity.sessions.streamr.live_subscription import LiveSubscription
from connectivity.sessions.streamr.permissions import entity_at
from connectivity.sessions.streamr.persistence import SessionPersistence
from connectivity.sessions.streamr.reply_channel import StreamrReplyChannel
from connectivity.sessions.streamr.resend import ResendQueue
from connectivity.transports.base import Done
from mappings.errors import Fault
from mappings.ids import EntityId
from mappings.streamr import errors
from mappings.streamr.errors import ErrorSubject, Sub
from mappings.streamr.frames import StreamrFrame, Subscribed, Unsubscribed, error_of
from mappings.streamr.options import StreamrOptions
from mappings.streamr.requests import SubscribeRequest, Unsubscribe
from mappings.streamr.sessions import (
    Effect,
    EndSession,
    LeaveStream,
    PersistedResend,
    PersistedSubscription,
    SendFrame,
    SessionLimits,
    SessionTable,
    Spot,
    SubscriptionRow,
    resumed_from,
)
from mappings.streams.stream_id import parse_stream_id

log = structlog.get_logger(__name__)

MakeLive = Callable[
    [StreamrReplyChannel, Spot, tuple[str, ...], Callable[[Fault], None], Callable[[int], object]], LiveSubscription
]


class SessionState:
    """The work in progress of one session. `channel` is the channel of its last reply."""

    __slots__ = ("channel", "live_subscriptions", "resending")

    def __init__(self, channel: StreamrReplyChannel, resending: ResendQueue) -> None:
        self.channel = channel
        self.live_subscriptions: dict[Spot, LiveSubscription] = {}
        self.resending = resending


class StreamrSessions:
    """The sessions of one connection that speak the protocol through one mapping."""

    def __init__(
        self,
        keeping: SessionPersistence,
        options: StreamrOptions,
        make_live: MakeLive,
        make_resending: Callable[[Callable[[Sub], object]], ResendQueue],
        newest: Callable[[EntityId], int],
        is_peer: Callable[[str], bool],
        on_follow: Callable[[StreamrSessions, str], object],
    ) -> None:
        """`newest` says the newest offset of a partition that is decided.

        `is_peer` says whether an address is a peer of a listener. `on_follow` is called with these sessions before one of
        them subscribes to a stream; it raises StoreUnavailable.
        """
        self.keeping = keeping
        self.connection_id, self.mapper = keeping.connection_id, keeping.mapper
        self.options = options
        self.sessions = SessionTable(SessionLimits(idle_timeout=options.idle_timeout), is_peer=is_peer)
        self.states: dict[str, SessionState] = {}
        self._on_follow = on_follow
        self._make_live = make_live
        self._make_resending = make_resending
        self._newest = newest
        self._begins: dict[tuple[str, Spot], int] = {}
        """The offset after which new subscriptions begin."""

    def __iter__(self) -> Iterator[SessionState]:
        return iter(list(self.states.values()))

    def state(self, channel: StreamrReplyChannel) -> SessionState:
        """Return the state of the session at this address; create it if there is none."""
        state = self.states.get(channel.address)
        if state is None:
            state = self.states[channel.address] = SessionState(
                channel, self._make_resending(partial(self.keeping.remove_resend, channel.address))
            )
        state.channel = channel
        return state

    def subscribe(
        self,
        request: SubscribeRequest,
        channel: StreamrReplyChannel,
        owners: frozenset[str],
        subjects: frozenset[str],
        now: float,
        client: str | None,
    ) -> list[StreamrFrame]:
        """Subscribe a session to a partition; return the reply for `answer`.

        It is sent when it is durable. Raises StoreUnavailable.
        """
        self._on_follow(self, request.stream)
        effects = self.sessions.subscribe(request, channel.address, owners, subjects, now, client=client)
        return self._apply(effects, channel)

    def unsubscribe(self, request: Unsubscribe, channel: StreamrReplyChannel, client: str | None) -> list[StreamrFrame]:
        """Unsubscribe a session from a partition; return the reply for when that is durable."""
        effects = self.sessions.unsubscribe(request, channel.address, client=client)
        return self._apply(effects, channel)

    def _apply(self, effects: Sequence[Effect], channel: StreamrReplyChannel) -> list[StreamrFrame]:
        """Store a decision and do what needs no durability; return what is left."""
        self.do([effect for effect in effects if not isinstance(effect, SendFrame)])
        frames = [effect.frame for effect in effects if isinstance(effect, SendFrame)]
        for frame in frames:
            if isinstance(frame, Subscribed | Unsubscribed):
                self._keep((frame.stream, frame.partition), channel)
        return frames

    def _keep(self, spot: Spot, channel: StreamrReplyChannel) -> None:
        """Store the subscription of a session, if it has one."""
        if (row := self.sessions.row(channel.address, spot)) is None:
            return
        if spot not in self.state(channel).live_subscriptions:
            self._begins.setdefault((channel.address, spot), self._newest(_entity(spot)))
        self.keeping.add_subscription(row, channel, self._begins.get((channel.address, spot), 0))

    def answer(self, frames: Sequence[StreamrFrame], channel: StreamrReplyChannel, ended: Done) -> None:
        """Do the rest of a durable decision, and reply."""
        replies = [self._begin(frame, channel) if isinstance(frame, Subscribed) else frame for frame in frames]
        channel.send_frames(replies, ended)

    def _begin(self, frame: Subscribed, channel: StreamrReplyChannel) -> StreamrFrame:
        """Begin a durable subscription, unless it is running. Return its frame."""
        spot = (frame.stream, frame.partition)
        after = self._begins.pop((channel.address, spot), None)
        row, state = self.sessions.row(channel.address, spot), self.states.get(channel.address)
        if row is None or after is None or (state is not None and spot in state.live_subscriptions):
            # It has been left since, or is followed for the second time.
            return frame
        # The decision could not be stored: forget it.
        failed = self._follow(spot, channel, row.subjects, min(after, self._newest(_entity(spot))))
        if failed is None:
            return frame
        self._undo(spot, channel.address)
        return error_of(failed, ErrorSubject(*spot), channel.correlation_id)

    def do(self, effects: Sequence[Effect]) -> None:
        """Carry out a decision that is not due to a request."""
        for effect in effects:
            match effect:
                case LeaveStream(address, spot):
                    self._leave(address, spot)
                case SendFrame(address, frame):
                    self._send(address, frame)
                case EndSession(address, why):
                    if (state := self.states.pop(address, None)) is not None:
                        for sub in state.resending.subs:
                            self.keeping.remove_resend(address, sub)
                        state.resending.stop()
                    log.info("session ended", connection=self.connection_id, address=address, reason=why.value)

    def _follow(self, spot: Spot, channel: StreamrReplyChannel, subjects: frozenset[str], after: int) -> Fault | None:
        """Begin to follow behind this offset; why it could not be begun."""
        state = self.state(channel)
        failed: list[Fault] = []

        def lost(fault: Fault) -> None:
            if state.live_subscriptions.get(spot) is live:
                self._lost(channel.address, spot, fault)
            else:
                failed.append(fault)

        at = self.keeping.at(channel.address, spot)
        live = self._make_live(channel, spot, tuple(subjects), lost, partial(self.keeping.confirm_sent, at))
        live.follow(_entity(spot), after)
        if failed:
            return failed[0]
        state.live_subscriptions[spot] = live
        return None

    def _lost(self, address: str, spot: Spot, fault: Fault) -> None:
        """Notify a session whose subscription has failed."""
        self._undo(spot, address)
        self._send(address, error_of(fault, ErrorSubject(*spot)))

    def _undo(self, spot: Spot, address: str) -> None:
        """Undo a subscription that could not be stored."""
        self.do(self.sessions.drop(address, spot))

    def _leave(self, address: str, spot: Spot) -> None:
        self.keeping.remove_subscription(address, spot)
        self._begins.pop((address, spot), None)
        state = self.states.get(address)
        if state is not None and (live := state.live_subscriptions.pop(spot, None)) is not None:
            live.leave()

    def _send(self, address: str, frame: StreamrFrame) -> None:
        if (state := self.states.get(address)) is not None:
            state.channel.send_notice(frame)

    def close(self) -> None:
        """Close the sessions of a connection. Stored ones resume when it is opened again."""
        self.sessions.close()
        for state in self:
            for live in state.live_subscriptions.values():
                live.leave()
            state.resending.stop()
        self.states.clear()
        self._begins.clear()

    def go_on(self, kept: PersistedSubscription, last: int, channel: StreamrReplyChannel, now: float) -> None:
        """Resume a stored subscription after the last offset that was sent.

        Raises StoreUnavailable.
        """
        spot = (kept.stream, kept.partition)
        self._on_follow(self, kept.stream)
        # Read before the session is created, so that a failure can be retried as a whole.
        newest = self._newest(_entity(spot))
        row = SubscriptionRow(channel.address, kept.owners, spot, frozenset(kept.subjects), kept.clients)
        if not self.sessions.restore(row, now):
            return
        after = resumed_from(last, newest - last, self.options.max_catch_up)
        if after is None:
            log.info("session too far behind to catch up", connection=self.connection_id, address=channel.address)
            self.keeping.confirm_sent(self.keeping.at(channel.address, spot), newest)
        failed = self._follow(spot, channel, row.subjects, newest if after is None else min(after, newest))
        if failed is not None:
            self._lost(channel.address, spot, failed)

    def cut_off(self, kept: PersistedResend, channel: StreamrReplyChannel) -> None:
        """A resend did not outlive the service: its client has to ask again."""
        fault = errors.resend_failed(kept.stream, kept.partition, "the service was restarted")
        about = ErrorSubject(kept.stream, kept.partition, kept.sub)
        frame = error_of(fault, about, kept.correlation_id)
        channel.send_frame(frame, lambda _: self.keeping.remove_resend(channel.address, kept.sub))


def _entity(spot: Spot) -> EntityId:
    """Return the entity whose events are the messages of a partition."""
    stream = parse_stream_id(spot[0])
    assert stream is not None, "the permission check accepts only valid stream IDs"
    return entity_at(stream, spot[1])
