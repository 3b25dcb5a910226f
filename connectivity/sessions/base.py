"""The session handler: serves one protocol with sessions, for all connections of a service.

Most protocols need none: each delivery is a command or a subscription. Where requests depend on earlier ones, the codec
decodes them as `SessionMessage`, and the dispatcher passes them in order to the session handler of the protocol. The handler
decides with the sans-IO machines of its protocol; it stores with the batch, subscribes through `SubscriptionManager`, and
sends through the publisher's outbox.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from connectivity.authorization.quotas import Quotas
from connectivity.config.settings import RetentionSettings, SparkMode
from connectivity.sources.deduplication import DeduplicationKey
from connectivity.sources.delivery import InboundDelivery
from connectivity.sources.reader import ReceivedSignal
from connectivity.store.session_repository import SessionRepository
from connectivity.store.store import Store
from connectivity.subscriptions.manager import SubscriptionManager
from connectivity.targets.open_connection import ConnectionComponent
from connectivity.targets.reply_target import ReplyTargetPublisher
from connectivity.transports.base import Done
from connectivity.twins.decider import Decider
from mappings.model.signals import Command, ErrorResponse, Event, Response, SessionMessage
from mappings.streams.entry import time_to_live
from mappings.timestamps import milliseconds
from spark_store.records import Change


class RetentionTimes:
    """Returns how long events are retained."""

    def __init__(self, retention: RetentionSettings, mode: SparkMode) -> None:
        self._retention = retention
        self.is_forever = mode is SparkMode.OFF or all(kept.days is None for kept in retention.rules.values())
        """Whether events are kept forever."""

    def remaining_seconds(self, event: Event, now: int) -> int:
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
    """Sends the reply to a request when its batch is durable, or could not be stored."""

    def __call__(self, error: BaseException | None, ended: Done, /) -> None:
        """`error`: why the changes are not stored. `ended` is called once the broker has the reply."""


@dataclass(frozen=True, slots=True)
class SessionCommand:
    """A command in a session's request.

    The dispatcher executes it as one that `subjects` have sent. `named` identifies the command across redeliveries.
    `on_result` is called once with the result, when that is durable.
    """

    command: Command
    subjects: tuple[str, ...]
    named: DeduplicationKey
    on_result: Callable[[Response | ErrorResponse, Done], None]


@dataclass(frozen=True, slots=True)
class SessionServices:
    """The services that session handlers use. `clock` returns monotonic seconds, `now` the time of day."""

    store: Store
    streams: SubscriptionManager
    decider: Decider
    clock: Callable[[], float]
    now: Callable[[], datetime]
    rows: Callable[[str], SessionRepository]
    """Opens the stored rows of a protocol's sessions."""
    lifetimes: RetentionTimes = FOREVER
    quotas: Quotas = field(default_factory=lambda: Quotas(()))


class SessionBatch(Protocol):
    """The part of a batch that session handlers add to."""

    changes: list[Change]
    """The staged changes."""
    undo: list[Callable[[], None]]
    """Calls for the case that the changes cannot be stored."""


class SessionHandler(ConnectionComponent, ABC):
    """Serves one protocol for all connections."""

    @abstractmethod
    def __init__(self, services: SessionServices) -> None: ...

    @abstractmethod
    def take(
        self,
        session_message: SessionMessage,
        received_signal: ReceivedSignal,
        arrival: InboundDelivery,
        batch: SessionBatch,
    ) -> Sequence[SessionReply | SessionCommand]:
        """Process a request.

        Its changes are staged in the store and appended to those of its batch. The returned replies and commands are
        handled in this order when these are durable; the delivery is settled when all have ended. A retried delivery is
        processed again; what the handler has noted in `arrival.results` is kept. Raises StoreUnavailable if it has to be
        retried.
        """

    @abstractmethod
    def refuse(self, error: ErrorResponse, route: ReplyTargetPublisher, arrival: InboundDelivery, ended: Done) -> None:
        """Answer a delivery that could not be read."""
