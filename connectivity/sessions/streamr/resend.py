"""The resends of a session: finite subscriptions to the history of a partition (Streamr, resend).

Its messages are fixed when a resend begins. `mappings.streamr.resends` decides when that is, and when an empty one is
answered; delayed ones begin in a round once a second. A resend has a window, and stops reading while the broker does not
keep up.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import structlog

from connectivity.errors import ConnectivityError
from connectivity.sessions.stream_source import StreamSource, fault_of, query_of
from connectivity.sessions.streamr.live_subscription import ENDED
from connectivity.sessions.streamr.reply_channel import StreamrReplyChannel
from connectivity.store.store import Store
from connectivity.subscriptions.manager import AT_ONCE, SubscriptionManager
from connectivity.targets.outbox import PendingPublish
from connectivity.transports.base import Done
from mappings.errors import INTERNAL_ERROR, Fault
from mappings.ids import EntityId, EntityType
from mappings.model.signals import (
    Cancel,
    Complete,
    Created,
    HistoryQuery,
    Next,
    Outbound,
    Request,
    Subscribe,
    SubscriptionKind,
)
from mappings.streamr.errors import Sub
from mappings.streamr.frames import StreamrFrame
from mappings.streamr.requests import Resend
from mappings.streamr.resends import ResendFrames, Resends, ResendTicket
from mappings.streams.entry import FromTime
from spark_store.errors import HistoryUnavailable, StoreUnavailable

log = structlog.get_logger(__name__)

WINDOW = 2 * AT_ONCE
"""The most unconfirmed messages of one resend."""


class ResendRequest(NamedTuple):
    """A requested resend of these subjects: nothing after the offset `newest`."""

    request: Resend
    entity: EntityId
    newest: int
    subjects: tuple[str, ...]


class ResendQueue:
    """The resends of one session."""

    def __init__(
        self,
        store: Store,
        streams: SubscriptionManager,
        source: StreamSource,
        clock: Callable[[], float],
        answered: Callable[[Sub], object],
    ) -> None:
        """`clock` returns monotonic seconds.

        `answered` is called when the broker has confirmed the end of all resends of a `sub`.
        """
        self.store = store
        self.streams = streams
        self.source = source
        self._clock = clock
        self._answered = answered
        self._resends = Resends()
        self._running: dict[int, _Resend] = {}
        """By ticket number, the waiting and the running resends."""
        self._delayed: list[tuple[float, _Resend, StreamrFrame]] = []
        self._unconfirmed: Counter[Sub] = Counter()
        """How many unconfirmed ends of each `sub` there are."""
        self._is_over = False

    @property
    def is_idle(self) -> bool:
        """Whether there is no resend."""
        return not self._running and not self._delayed

    @property
    def subs(self) -> set[Sub]:
        """Return the `sub`s of resends with an unconfirmed end."""
        asked = {resend.ticket.request.sub for resend in self._running.values()}
        return asked | {resend.ticket.request.sub for _, resend, _ in self._delayed} | set(self._unconfirmed)

    def ask(self, wanted: ResendRequest, channel: StreamrReplyChannel) -> None:
        """Queue a resend. Raises RequestRejected if too many wait."""
        ticket = self._resends.ask(wanted.request)
        self._running[ticket.number] = _Resend(self, ticket, wanted, channel)
        self.go_on()

    def go_on(self) -> None:
        """Begin the resends that are due."""
        now = self._clock()
        due = [entry for entry in self._delayed if entry[0] <= now]
        if due:
            self._delayed = [entry for entry in self._delayed if entry[0] > now]
            for _, resend, frame in due:
                self._answer(resend, frame)
        for ticket in self._resends.begin(now):
            self._running[ticket.number].begin()

    def stop(self) -> None:
        """The session is over."""
        self._is_over = True
        self._resends.stop()
        asked, self._running, self._delayed = self._running, {}, []
        for resend in asked.values():
            resend.stop()

    def finish(self, resend: _Resend, frame: StreamrFrame, *, found: bool) -> None:
        """A resend has come to its end, and this is the frame that says so."""
        now = self._clock()
        self._running.pop(resend.ticket.number, None)
        at = self._resends.finish(resend.ticket, found, now)
        if at <= now:
            self._answer(resend, frame)
        else:
            self._delayed.append((at, resend, frame))
        self.go_on()

    def _answer(self, resend: _Resend, frame: StreamrFrame) -> None:
        self._resends.answered(resend.ticket)
        self._unconfirmed[resend.ticket.request.sub] += 1
        resend.channel.send_frame(frame, partial(self._end_confirmed, resend.ticket.request.sub))

    def _end_confirmed(self, sub: Sub, _error: ConnectivityError | None) -> None:
        self._unconfirmed[sub] -= 1
        if not self._unconfirmed[sub]:
            del self._unconfirmed[sub]
        if not self._is_over and sub not in self.subs:
            self._answered(sub)


class _Resend:
    """One resend, which receives the elements of its subscription."""

    terminal_needs_request = False

    def __init__(
        self,
        resending: ResendQueue,
        ticket: ResendTicket,
        wanted: ResendRequest,
        channel: StreamrReplyChannel,
    ) -> None:
        self.ticket = ticket
        self.channel = channel
        self.connection_id = channel.connection_id
        self._key = f"{ticket.request.sub}\0{ticket.number}"
        self._resending, self._streams, self._source = resending, resending.streams, resending.source
        self._subscriber = channel.subscriber(self, wanted.subjects, self._streams)
        self._plan = wanted
        self._looking: asyncio.Task[None] | None = None
        self._conversation = ResendFrames(ticket.request)
        self._is_over = False

    def begin(self) -> None:
        request, entity, newest, _ = self._plan
        is_timed = isinstance(request.selection, FromTime) and entity.type is EntityType.STREAM
        query = None if is_timed else query_of(request.selection, entity, newest)
        if query is not None and self._is_at_hand(query):
            self._subscribe(query)
        else:
            self._looking = asyncio.get_running_loop().create_task(self._look(query))

    async def _look(self, query: HistoryQuery | None) -> None:
        """Find where the stream begins, so that the first messages name the right predecessors.

        For a resend from a time also its first message; publishers choose times in any order, so that may take a while.
        """
        request, entity, newest, _ = self._plan
        try:
            oldest = await self._resending.store.retained_history.look(entity)
            if query is None:
                assert isinstance(request.selection, FromTime)
                query = await self._source.query_from_time(
                    entity, request.selection.instant, oldest=oldest, newest=newest
                )
            self._subscribe(query)
        except (StoreUnavailable, HistoryUnavailable) as error:
            log.error("resend not started", reason=str(error), entity=str(entity))
            self._fail(INTERNAL_ERROR if isinstance(error, StoreUnavailable) else error.fault)
        except Exception:
            log.exception("resend not started", entity=str(entity))
            self._fail(INTERNAL_ERROR)

    def _subscribe(self, query: HistoryQuery) -> None:
        self._streams.subscribe(Subscribe(SubscriptionKind.HISTORY, query, {}, self._key, WINDOW), self._subscriber)

    def stop(self) -> None:
        self._is_over = True
        if self._looking is not None:
            self._looking.cancel()
        self._streams.cancel(Cancel(SubscriptionKind.HISTORY, self._key, {}), self._subscriber)

    def post(self, signal: Outbound, ended: Done | None = None) -> PendingPublish | None:
        """Send messages, the end, or an error."""
        if self._is_over or isinstance(signal, Created):
            return None
        if isinstance(signal, Next):
            return self._send(signal, ended)
        if not isinstance(signal, Complete):
            self._fail(fault_of(signal, ENDED))
            return None
        self._is_over = True
        self._resending.finish(self, self._conversation.completed(), found=self._conversation.has_match)
        return None

    def _fail(self, fault: Fault) -> None:
        if not self._is_over:
            self._is_over = True
            # Nothing was found out, so that asking again is not held against the client.
            frame = self._conversation.failed(fault, self.channel.correlation_id)
            self._resending.finish(self, frame, found=True)

    def _send(self, signal: Next, ended: Done | None) -> PendingPublish:
        frames = self._conversation.element_frames([self._source.entry(event) for event in signal.elements])
        number = len(signal.elements)
        return self.channel.send_frames(frames, partial(self._sent, number, ended), elements=number)

    def _sent(self, number: int, ended: Done | None, error: ConnectivityError | None) -> None:
        """The broker has the messages; one that it has refused leaves a gap, which ends the resend."""
        if ended is not None:
            ended(error)
        if error is None and not self._is_over:
            self._streams.request(Request(SubscriptionKind.HISTORY, self._key, number, {}), self._subscriber)

    def _is_at_hand(self, query: HistoryQuery) -> bool:
        try:
            return self._source.is_at_hand(query)
        except StoreUnavailable:
            # Looking it up reports why.
            return False
