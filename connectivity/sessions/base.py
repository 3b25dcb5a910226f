"""What a desk is: it serves one protocol with sessions of its own, for all connections of a service.

Most protocols need none: what a delivery says is a command or asks for a subscription, and its answers go to the
reply-target of its source. Where clients have sessions, in which one request depends on those before it, a codec reads them
as `SessionMessage`, and the dispatcher hands them to the desk of their protocol (`load_desk`), in the order in which they
came. A desk decides with the machines of its protocol, which know no clock and no broker, and acts: it stores by way of the
batch that it is handed, opens subscriptions on `SubscriptionManager`, and sends by the outbox of the route.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from connectivity.config.settings import RetentionSettings, SparkMode
from connectivity.sources.delivery import DeduplicationKey, InboundDelivery
from connectivity.sources.reader import ReceivedSignal
from connectivity.store.session_repository import SessionRepository
from connectivity.store.store import Store
from connectivity.subscriptions.manager import SubscriptionManager
from connectivity.targets.reply_target import ReplyTargetPublisher
from connectivity.transports.base import Done, ReaderStatus
from connectivity.twins.decider import Decider
from mappings.model.signals import Command, ErrorResponse, Event, Response, SessionMessage
from mappings.streamr.messages import time_to_live
from mappings.streamr.timestamps import milliseconds
from spark_store.records import Change


class RetentionTimes:
    """What is left to events."""

    def __init__(self, retention: RetentionSettings, mode: SparkMode) -> None:
        self._retention = retention
        self.is_forever = mode is SparkMode.OFF or all(kept.days is None for kept in retention.rules.values())
        """Whether no time ends anything."""

    def __repr__(self) -> str:
        return "<Lifetimes: forever>" if self.is_forever else f"<Lifetimes by {', '.join(self._retention.rules)}>"

    def left(self, event: Event, now: int) -> int:
        """Whole seconds until an event's time is over, at least one; 0 where no time ends it.

        `now` in milliseconds.
        """
        if self.is_forever:
            return 0
        kept = self._retention.of(event.entity.namespace)
        if kept.days is None:
            return 0
        stored, seconds = milliseconds(event.timestamp), kept.days.total_seconds()
        if kept.revisions is not None and now >= stored + 1000 * seconds:
            return 0
        return time_to_live(stored, seconds, now)


FOREVER = RetentionTimes(RetentionSettings(), SparkMode.OFF)


class SessionReply(Protocol):
    """What is said of a request when its batch is durable, or could not be stored."""

    def __call__(self, error: BaseException | None, ended: Done, /) -> None:
        """`error`: why the changes of the request are not stored.

        `ended` is called once: the broker has what was said.
        """


@dataclass(frozen=True, slots=True)
class SessionCommand:
    """A command that a request is, or has in it.

    The dispatcher carries it out as one that `subjects` have sent.

    `named` is what names the command across redeliveries. `told` is told once what came of it, when that is durable.
    """

    command: Command
    subjects: tuple[str, ...]
    named: DeduplicationKey
    told: Callable[[Response | ErrorResponse, Done], None]


@dataclass(frozen=True, slots=True)
class SessionServices:
    """What a desk works with. `clock` gives monotonic seconds, `now` the time of day."""

    store: Store
    streams: SubscriptionManager
    decider: Decider
    clock: Callable[[], float]
    now: Callable[[], datetime]
    rows: Callable[[str], SessionRepository]
    """What is kept of the sessions of a protocol."""
    lifetimes: RetentionTimes = FOREVER


class SessionHandler(ABC):
    """Serves one protocol."""

    @abstractmethod
    def __init__(self, means: SessionServices) -> None: ...

    @abstractmethod
    def take(
        self, spoken: SessionMessage, heard: ReceivedSignal, arrival: InboundDelivery, changes: list[Change]
    ) -> Sequence[SessionReply | SessionCommand]:
        """Carry out a request.

        What it changes is staged in the store and appended to the changes of its batch.

        What comes back is said when these are durable, or is still to be carried out, in this order; the delivery is settled
        when all of it has ended. Nothing: that is all. Where an arrival is taken up again, so is all of this: what the desk
        has noted in `arrival.made` is still there. Raises StoreUnavailable where that has to be.
        """

    @abstractmethod
    def refuse(self, error: ErrorResponse, route: ReplyTargetPublisher, arrival: InboundDelivery, ended: Done) -> None:
        """Answer a delivery that could not be read."""

    @abstractmethod
    def sweep(self) -> None:
        """About once a second: do what is due."""

    @abstractmethod
    def close_connection(self, connection_id: str) -> None:
        """The connection is closed, for now or for ever: nothing more is sent to its sessions."""

    # What a desk has nothing to do about unless its sessions outlive the service, or end with those who read.

    def opened(self, connection_id: str, routes: Sequence[ReplyTargetPublisher]) -> None:  # noqa: B027
        """A connection is about to be open, with these routes of its sources: sessions go on that were kept."""

    def keep_only(self, is_wanted: Callable[[str], bool]) -> None:  # noqa: B027
        """Only connections of which this is true may be open: the sessions of others have ended."""

    def reader(self, connection_id: str, address: str, sign: ReaderStatus) -> None:  # noqa: B027
        """What is to be seen of those who read at an address."""

    async def part(self, connection_id: str) -> None:  # noqa: B027
        """A connection is about to be closed: take leave of its sessions, and return when they have answered.

        Deliveries still come; whoever calls this waits only as long as he has time.
        """

    async def close(self) -> None:  # noqa: B027
        """The service ends: make durable what goes on when it is there again."""
