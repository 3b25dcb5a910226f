"""What a session follows: one subscription on the live feed of each partition (Streamr protocol, subscriptions).

Following begins behind the newest message of that moment and has no end. The protocol knows no demand, so a session has a
window: as many messages as the broker has not confirmed yet. What it confirms is asked for again, so a session that does not
keep up costs no more than its window. One that is far behind for long goes on with the newest message; its client sees by
the predecessor what was left out, and asks for it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from connectivity.errors import ConnectivityError
from connectivity.sessions.streamr.messages import MessageWriter
from connectivity.sessions.streamr.reply_channel import StreamrReplyChannel
from connectivity.subscriptions.manager import Subscriber, SubscriptionManager
from connectivity.targets.outbox import PendingPublish
from connectivity.transports.base import Done
from mappings.errors import Fault
from mappings.ids import EntityId
from mappings.model.signals import (
    Cancel,
    Created,
    EndReason,
    ErrorResponse,
    Failed,
    LiveQuery,
    Next,
    Outbound,
    Request,
    Subscribe,
    SubscriptionKind,
)
from mappings.streamr.frames import FrameType
from mappings.streamr.sessions import Spot

WINDOW = 1000
"""Messages of one subscription that the broker has not confirmed yet: twice as many as one turn may publish, so that a busy
service leaves nothing out for those who keep up."""


class LiveSubscription:
    """One session on one partition: where the engine's answers go.

    `lost` is told when the feed has failed by itself.
    """

    terminal_needs_request = False

    def __init__(
        self,
        streams: SubscriptionManager,
        writing: MessageWriter,
        line: StreamrReplyChannel,
        spot: Spot,
        subjects: tuple[str, ...],
        lost: Callable[[Fault], None],
        sent: Callable[[int], object],
    ) -> None:
        """`sent` is told up to which offset the broker has everything."""
        self.line = line
        self.connection_id = line.connection_id
        self.last: int | None = None
        """The offset that was sent last."""
        self._streams = streams
        self._writing = writing
        self._key = f"{spot[0]}/{spot[1]}"
        self._lost = lost
        self._confirmed = sent
        self._is_over = False
        self.peer = Subscriber(self, subjects, (line.connection_id, line.address), has_session=True)

    def __repr__(self) -> str:
        return f"<Live {self._key} to {self.line.address}, sent {self.last}>"

    def follow(self, entity: EntityId, after: int | None = None) -> None:
        """Begin behind this offset, or behind the newest one."""
        subscribe = Subscribe(SubscriptionKind.LIVE, LiveQuery(entity, after, may_leap=True), {}, self._key, WINDOW)
        self._streams.subscribe(subscribe, self.peer)

    def leave(self) -> None:
        """Send no more, and nothing that the broker does not have yet."""
        self._is_over = True
        self._streams.cancel(Cancel(SubscriptionKind.LIVE, self._key, {}), self.peer)

    def post(self, signal: Outbound, ended: Done | None = None) -> PendingPublish | None:
        """Broadcast what has come, if the session still follows."""
        if self._is_over:
            return None
        if isinstance(signal, Next):
            writing, style = self._writing, self.line.style
            frames = [(FrameType.BROADCAST, writing.broadcast(event, style)) for event in signal.elements]
            self.last = signal.elements[-1].revision
            return self.line.send(frames, partial(self._sent, len(frames), self.last, ended), elements=len(frames))
        if not isinstance(signal, Created):
            self._is_over = True
            self._lost(fault_of(signal))
        return None

    def _sent(self, number: int, last: int, ended: Done | None, _error: ConnectivityError | None) -> None:
        """The broker has so many messages, or has refused one: then its successor shows what is missing."""
        if ended is not None:
            ended(None)
        if not self._is_over:
            self._confirmed(last)
            self._streams.request(Request(SubscriptionKind.LIVE, self._key, number, {}), self.peer)


def fault_of(signal: Outbound) -> Fault:
    """Why the engine has ended a subscription, or not begun it."""
    if isinstance(signal, ErrorResponse):
        return signal.fault
    reason = signal.reason if isinstance(signal, Failed) else EndReason.CANCELLED
    return reason if isinstance(reason, Fault) else Fault(503, "streamr:subscription.ended", reason.value)
