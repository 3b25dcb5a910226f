"""The live subscriptions of a session, one for each partition (Streamr protocol, subscriptions).

A subscription begins after the newest message and has no end. The protocol has no demand, so a session has a window of
unconfirmed messages; confirmed ones are requested again. A session that lags far behind for long skips ahead to the newest
message; its client detects the gap by the predecessor, and requests the missing messages.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from connectivity.errors import ConnectivityError
from connectivity.sessions.stream_source import fault_of
from connectivity.sessions.streamr.frame_cache import FrameCache
from connectivity.sessions.streamr.reply_channel import StreamrReplyChannel
from connectivity.subscriptions.manager import SubscriptionManager
from connectivity.targets.outbox import PendingPublish
from connectivity.transports.base import Done
from mappings.errors import Fault
from mappings.ids import EntityId
from mappings.model.signals import (
    Cancel,
    Created,
    LiveQuery,
    Next,
    Outbound,
    Request,
    Subscribe,
    SubscriptionKind,
)
from mappings.streamr.frames import FrameType
from mappings.streamr.sessions import Spot

ENDED = Fault(503, "streamr:subscription.ended", "The subscription has ended.")

WINDOW = 1000
"""The most unconfirmed messages of one subscription.

Twice as many as one turn may publish, so that sessions that keep up miss nothing.
"""


class LiveSubscription:
    """The live subscription of one session to one partition. `lost` is called if the feed fails."""

    terminal_needs_request = False

    def __init__(
        self,
        streams: SubscriptionManager,
        frames: FrameCache,
        channel: StreamrReplyChannel,
        spot: Spot,
        subjects: tuple[str, ...],
        lost: Callable[[Fault], None],
        sent: Callable[[int], object],
    ) -> None:
        """`sent` receives the offset up to which the broker has confirmed everything."""
        self.channel = channel
        self.connection_id = channel.connection_id
        self.last: int | None = None
        """The offset that was sent last."""
        self._streams = streams
        self._frames = frames
        self._key = f"{spot[0]}/{spot[1]}"
        self._lost = lost
        self._confirmed = sent
        self._is_over = False
        self.peer = channel.subscriber(self, subjects, streams)

    def follow(self, entity: EntityId, after: int | None = None) -> None:
        """Begin after this offset, or after the newest one."""
        subscribe = Subscribe(SubscriptionKind.LIVE, LiveQuery(entity, after, may_skip=True), {}, self._key, WINDOW)
        self._streams.subscribe(subscribe, self.peer)

    def leave(self) -> None:
        """Send no more, and nothing that the broker does not have yet."""
        self._is_over = True
        self._streams.cancel(Cancel(SubscriptionKind.LIVE, self._key, {}), self.peer)

    def post(self, signal: Outbound, ended: Done | None = None) -> PendingPublish | None:
        """Broadcast messages, if the session is still subscribed."""
        if self._is_over:
            return None
        if isinstance(signal, Next):
            cache, style = self._frames, self.channel.style
            frames = [(FrameType.BROADCAST, cache.broadcast(event, style)) for event in signal.elements]
            self.last = signal.elements[-1].revision
            return self.channel.send(frames, partial(self._sent, len(frames), self.last, ended), elements=len(frames))
        if not isinstance(signal, Created):
            self._is_over = True
            self._lost(fault_of(signal, ENDED))
        return None

    def _sent(self, number: int, last: int, ended: Done | None, _error: ConnectivityError | None) -> None:
        """Count confirmed messages. After a refused one, its successor reveals the gap."""
        if ended is not None:
            ended(None)
        if not self._is_over:
            self._confirmed(last)
            self._streams.request(Request(SubscriptionKind.LIVE, self._key, number, {}), self.peer)
