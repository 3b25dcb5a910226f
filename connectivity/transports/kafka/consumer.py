"""The consumer and its thread: reads records, follows rebalances, pauses, stores offsets.

Only the thread uses the consumer: another thread that stored an offset during a poll would block. Records reach the
event loop in batches with one wake-up each; only numbers come back. Rebalances happen inside a poll.

**Bound.** At `IN_FLIGHT` unsettled records, or so many bytes, or `MOST_WAITING` records that are unsettled or behind an
unsettled one, the thread takes no more. It first waits briefly, since pausing discards the library's read-ahead, then
pauses all partitions and polls on to stay in the group.

**Start.** A group continues at its offset; without one it starts at the end (`latest`) or beginning (`earliest`), and
partitions created later start at the beginning. A start at the end is committed at once. With an assignment that is out of
date (`connectivity.transports.kafka.group`), the thread leaves the group and joins again.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future

import structlog
from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, OffsetSpec, TopicDescription  # type: ignore[attr-defined]

from connectivity.errors import Detail, LinkError, NotConnected
from connectivity.transports.base import MOST_WAITING
from connectivity.transports.kafka.client_config import Settings
from connectivity.transports.kafka.errors import link_error
from connectivity.transports.kafka.group import (
    RESPONSE_TIMEOUT,
    Key,
    committed_topic_id,
    described_topic_id,
    is_out_of_date,
    later_partitions,
    list_offsets,
)
from connectivity.transports.kafka.partition import Partition
from connectivity.transports.kafka.read_errors import ReadErrors
from connectivity.transports.kafka.records import Record, UnreadableRecord, size_of

log = structlog.get_logger(__name__)

IN_FLIGHT = 1000
LONGEST_BATCH = 500
POLL = 0.1
"""Seconds that one poll waits: the maximum delay until the thread notices requests of the event loop."""

COMMIT_INTERVAL = 0.02
"""Seconds between two commits, and those that the thread waits while records are open.

With 0.1, a service that was killed that soon after each start read the same records again each time.
"""

PAUSE_DELAY = 1.0
"""Seconds without room after which the partitions are paused."""

TOPIC_CHECK_INTERVAL = 2.0
"""Seconds between checks for topics that were created again, which the library does not report."""
UNLIMITED = 1 << 62

_BEGINNING, _END = OffsetSpec.earliest(), OffsetSpec.latest()  # type: ignore[no-untyped-call]

Records = list[tuple[Partition, Record, int]]
"""Records with their partitions and sizes."""


class KafkaConsumer:
    """One member of the group.

    `on_records` is called on the event loop when `records` is no longer empty, `on_committed` with the key of a partition
    and its committed offset, `on_dropped` with a partition that was taken away, `on_error` with an error and its topic (or
    ""), `on_ended` when the thread has ended unexpectedly.
    """

    def __init__(
        self,
        settings: Settings,
        admin: AdminClient,
        topics: dict[str, bool],
        known: Iterable[Key],
        *,
        starts_at_end: bool,
        limit: int | None,
        max_bytes: int,
        on_records: Callable[[], None],
        on_committed: Callable[[str, int], None],
        on_dropped: Callable[[Partition], None],
        on_error: Callable[[KafkaError, str], None],
        on_ended: Callable[[LinkError], None],
    ) -> None:
        """`topics`: topic → whether its records need at-least-once delivery.

        `known`: the partitions that exist when the link is made. `limit`: the maximum number of records per second.
        `max_bytes`: how many bytes of records may be unsettled.
        """
        self.records: deque[Records] = deque()
        self.joined: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.ended = self.ended_bytes = self.passed = 0
        """Records that have ended, their bytes, and those that wait for no earlier one; all counted."""
        self.errors = ReadErrors()
        self._delivered = self._delivered_bytes = 0
        self._max_bytes = max_bytes
        self._loop = asyncio.get_running_loop()
        self._admin, self._topics, self._known = admin, topics, frozenset(known)
        self._group: str = settings["group.id"]
        self._begins_at_end, self._throttle = starts_at_end, Throttle(limit)
        self._on_records, self._on_committed, self._on_dropped = on_records, on_committed, on_dropped
        self._on_error, self._on_ended = on_error, on_ended
        callbacks = {
            "error_cb": lambda error: self._call_on_loop(on_error, error, ""),
            "on_commit": self._report_committed,
        }
        self._consumer = Consumer({**settings, **callbacks})
        self._partitions: dict[Key, Partition] = {}
        self._rejected: deque[Partition] = deque()
        self._waiting: list[tuple[float, Partition]] = []
        """Partitions to read again and the time for each; used by the thread only."""
        self._committed_at = 0.0
        self._full_since: float | None = None
        """Since when the thread has waited for room."""
        self._checked_at = time.monotonic()
        self._described: dict[str, Future[TopicDescription]] = {}
        self._wake_event = threading.Event()
        """Set when there is room again, or another request for the thread."""
        self._has_former_partitions: bool | None = None
        """Whether the first assignment is out of date; None before there is one."""
        self._failure: Exception | None = None
        """The error that occurred while partitions were assigned."""
        self._is_stopping = self._is_paused = self._is_waking = False
        self.closed: Future[None] = Future()
        """Done when the thread has ended and the consumer is closed."""
        self._thread = threading.Thread(target=self._run, name="kafka consumer", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def throttled(self) -> int:
        """The number of minutes in which the rate limit has delayed the thread."""
        return self._throttle.minutes

    # ── on the loop ───────────────────────────────────────────────────────────────────────────────────────────────────

    def has_ended(self, count: int, size: int, passed: int) -> None:
        """Record that records of so many bytes have ended or were dropped, so that there is room again.

        `passed`: how many records, of these and others, now wait for no earlier one.
        """
        self.passed += passed
        self.ended += count
        self.ended_bytes += size
        if not self._wake_event.is_set() and self._is_half_empty:
            self._wake_event.set()

    @property
    def _is_half_empty(self) -> bool:
        return (
            self._delivered - self.ended <= IN_FLIGHT // 2
            and self._delivered - self.passed <= MOST_WAITING // 2
            and self._unsettled_bytes <= self._max_bytes // 2
        )

    @property
    def _unsettled_bytes(self) -> int:
        return self._delivered_bytes - self.ended_bytes

    def read_again(self, partition: Partition) -> None:
        """Read a partition again from its first unsettled record, after its delay."""
        self._rejected.append(partition)
        self._wake_event.set()

    def stop(self) -> None:
        """End the thread and close the consumer (see `gone`), which commits the settled offsets.

        A static member stays in the group until its session times out.
        """
        self._is_stopping = True
        self._wake_event.set()

    # ── in the thread ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _run(self) -> None:
        try:
            if self._begins_at_end:
                self._known -= later_partitions(self._consumer, self._known)
            self._subscribe()
            while not self._is_stopping:
                self._turn()
            self._store(self._partitions.values())
        except KafkaException as failure:
            self._call_on_loop(self._on_ended, link_error(failure.args[0], ", ".join(self._topics)))
        except LinkError as failure:
            self._call_on_loop(self._on_ended, failure)
        except TimeoutError:
            self._call_on_loop(
                self._on_ended, NotConnected(Detail.TIMEOUT, "the broker sent no partitions and offsets in time")
            )
        except Exception as failure:  # an internal error: a consumer that ends silently would be worse
            self._call_on_loop(
                self._on_ended, NotConnected(Detail.CONNECTING, f"internal error, consuming stopped: {failure!r}")
            )
        finally:
            # A consumer that is already closed raises errors of no interest.
            with contextlib.suppress(KafkaException, RuntimeError):
                self._consumer.close()
            self.closed.set_result(None)

    def _subscribe(self) -> None:
        self._consumer.subscribe(
            list(self._topics), on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._lost
        )

    def _turn(self) -> None:
        self._read_rejected_again()
        if (now := time.monotonic()) >= self._committed_at + COMMIT_INTERVAL and self._store(self._partitions.values()):
            self._committed_at = now
            # The library repeats it if it fails.
            with contextlib.suppress(KafkaException):
                self._consumer.commit(asynchronous=True)
        if now >= self._checked_at + TOPIC_CHECK_INTERVAL:
            self._checked_at = now
            self._check_topics()
        if pause := self._throttle.pause():
            self._wake_event.clear()
            if not self._is_stopping:
                self._wake_event.wait(min(pause, self._longest_wait))
            return
        space = self._max_bytes - self._unsettled_bytes
        unsettled, behind = self._delivered - self.ended, self._delivered - self.passed
        room = min(IN_FLIGHT - unsettled, MOST_WAITING - behind, self._throttle.remaining) if space > 0 else 0
        if (room <= 0 or self._full_since is not None) and not self._is_paused:
            self._full_since = self._full_since or now
            if self._wait_for_request(COMMIT_INTERVAL):
                self._full_since = None
            elif now >= self._full_since + PAUSE_DELAY:
                self._full_since, self._is_paused = None, True
                self._consumer.pause(self._consumer.assignment())
            return
        if room > 0 and self._is_paused:
            self._resume()
        first = self._consumer.poll(self._longest_wait)
        if self._failure is not None:
            raise self._failure
        if self._has_former_partitions:
            self._has_former_partitions = False
            self._consumer.unsubscribe()
            self._subscribe()
        if first is None:
            return
        # `consume` waits until it has as many records as requested, so only the first one is waited for.
        # The others may be larger, but not than what the library has fetched ahead.
        most = min(room, LONGEST_BATCH, space // (size_of(first) or 1))
        more = self._consumer.consume(most - 1, 0) if most > 1 else []
        self._hand_over([first, *more])

    @property
    def _longest_wait(self) -> float:
        """The seconds that the thread may wait: fewer while records are unsettled, or settled and not stored."""
        is_open = self._delivered != self.ended or any(it.settled > it.stored for it in self._partitions.values())
        return COMMIT_INTERVAL if is_open else POLL

    def _resume(self) -> None:
        """Resume all partitions except those that wait to be read again."""
        self._is_paused = False
        waiting = {(partition.topic, partition.number) for _, partition in self._waiting if self._owns(partition)}
        assigned = self._consumer.assignment()
        self._consumer.resume([place for place in assigned if (place.topic, place.partition) not in waiting])

    def _check_topics(self) -> None:
        """Compare the answers to the last request with the topics of the partitions, and request again.

        Raises NotConnected for a topic that was deleted and created again: its next link starts at its beginning.
        """
        for topic, future in self._described.items():
            if future.done() and future.exception() is None:
                id = described_topic_id(future.result())
                if any(each.topic == topic and each.topic_id != id for each in self._partitions.values()):
                    raise _recreated(topic)
        topics = list({partition.topic for partition in self._partitions.values()})
        self._described = self._admin.describe_topics(TopicCollection(topics)) if topics else {}

    def _wait_for_request(self, seconds: float) -> bool:
        """Wait for room or another request. Return False after a timeout."""
        self._wake_event.clear()
        # A request from before the event was cleared must be checked for.
        is_requested = self._is_stopping or bool(self._rejected) or self._is_half_empty
        return is_requested or self._wake_event.wait(seconds)

    def _hand_over(self, messages: Sequence[Message]) -> None:
        records: Records = []
        unreadable: dict[Partition, UnreadableRecord] = {}
        deleted: dict[Partition, int] = {}
        for message in messages:
            topic = message.topic() or ""
            partition = self._partitions.get((topic, message.partition() or 0))
            error = message.error()
            if error is not None and error.code() not in (KafkaError._BAD_COMPRESSION, KafkaError._AUTO_OFFSET_RESET):
                self.errors.note(error, topic)
                self._call_on_loop(self._on_error, error, topic)
            elif partition is None:
                # It was taken away while this batch was on its way.
                continue
            elif error is None:
                if (offset := message.offset() or 0) < partition.read_from:
                    raise _recreated(topic)
                partition.read_from = offset + 1
                records.append((partition, message, size_of(message)))
            elif error.code() == KafkaError._AUTO_OFFSET_RESET:
                deleted[partition] = message.offset() or 0
            elif partition not in unreadable:
                # The library would read the batch forever. Its offset is known, but not its end, so its records are
                # skipped one after another.
                unreadable[partition] = UnreadableRecord(max(message.offset() or 0, partition.read_from))
        for partition, record in unreadable.items():
            records.append((partition, record, 0))
            partition.read_from = record.offset() + 1
            self._consumer.seek(_topic_partition(partition, partition.read_from))
        if records:
            self._delivered += len(records)
            self._delivered_bytes += sum(size for _, _, size in records)
            self._throttle.took(len(records))
            self.records.append(records)
            if not self._is_waking:
                self._is_waking = True
                self._call_on_loop(self._wake)
        for partition, offset in deleted.items():
            self._skip_deleted(partition, offset)

    def _skip_deleted(self, partition: Partition, offset: int) -> None:
        """Continue with the first record of a partition, because its next one, at `offset`, was deleted.

        Raises NotConnected if the partition ends before it, KafkaException, TimeoutError.
        """
        [first] = list_offsets(self._admin, [_topic_partition(partition)], _BEGINNING).values()
        if first <= offset:
            raise _recreated(partition.topic)
        _log_deleted(partition.topic, partition.number, first - offset)
        partition.read_from = first
        # The library does not fetch this partition any more, and can only seek in those that it fetches.
        place = _topic_partition(partition, first)
        self._consumer.incremental_unassign([place])
        self._consumer.incremental_assign([place])
        if self._is_paused:
            self._consumer.pause([place])

    def _wake(self) -> None:
        self._is_waking = False
        self._on_records()

    def _read_rejected_again(self) -> None:
        now = time.monotonic()
        while self._rejected:
            partition = self._rejected.popleft()
            if self._owns(partition):
                self._consumer.pause([_topic_partition(partition)])
                self._waiting.append((now + partition.delay, partition))
        if not self._waiting:
            return
        due = [partition for at, partition in self._waiting if at <= now]
        self._waiting = [(at, partition) for at, partition in self._waiting if at > now]
        for partition in due:
            if self._owns(partition):
                self._store([partition])
                self._partitions[partition.topic, partition.number] = fresh = partition.again()
                self._consumer.seek(_topic_partition(fresh, fresh.settled))
                if not self._is_paused:
                    self._consumer.resume([_topic_partition(fresh)])

    def _owns(self, partition: Partition) -> bool:
        return self._partitions.get((partition.topic, partition.number)) is partition

    def _assigned(self, consumer: Consumer, places: list[TopicPartition]) -> None:
        try:
            if self._has_former_partitions is None:
                self._has_former_partitions = is_out_of_date(self._admin, self._group, self._topics, places)
            if not self._has_former_partitions:
                self._start_partitions(consumer, places)
        except Exception as failure:  # raised by `_turn`, since the library would raise another exception
            self._failure = failure

    def _start_partitions(self, consumer: Consumer, places: list[TopicPartition]) -> None:
        """Start with newly assigned partitions. Raises KafkaException, and TimeoutError without an answer."""
        found = self._starts(places)
        begun = [partition for partition, must_commit in found if must_commit]
        if begun:
            consumer.commit(
                offsets=[_topic_partition(partition, partition.settled) for partition in begun], asynchronous=False
            )
        for partition, _ in found:
            self._partitions[partition.topic, partition.number] = partition
            self._call_on_loop(self._on_committed, partition.key, max(partition.settled, 0))
        consumer.incremental_assign([_topic_partition(partition, partition.settled) for partition, _ in found])
        # The library keeps partitions paused that were taken away.
        (consumer.pause if self._is_paused else consumer.resume)(places)
        self._call_on_loop(self._has_joined)

    def _has_joined(self) -> None:
        if not self.joined.done():
            self.joined.set_result(None)

    def _starts(self, places: list[TopicPartition]) -> list[tuple[Partition, bool]]:
        """Return the partitions with their starts, and whether a start must be committed.

        The broker may still hold offsets of a deleted topic when one with the same name is created: those name another
        topic ID, or are beyond the end. Then the partition is read from its beginning. Raises KafkaException, TimeoutError.
        """
        if not places:
            return []
        topics = self._admin.describe_topics(TopicCollection(list({place.topic for place in places})))
        committed = self._consumer.committed(places, RESPONSE_TIMEOUT)
        ids = {name: described_topic_id(future.result(RESPONSE_TIMEOUT)) for name, future in topics.items()}
        beginning_of = list_offsets(self._admin, places, _BEGINNING)
        end_of = list_offsets(self._admin, places, _END)
        visible_end_of: dict[Key, int] = {}
        if self._begins_at_end and any(place.offset < 0 for place in committed):
            # Records of transactions that are still open follow.
            visible_end_of = list_offsets(self._admin, places, _END, isolation_level=IsolationLevel.READ_COMMITTED)
        found = []
        for place in committed:
            if place.error is not None:
                raise KafkaException(place.error)
            key = place.topic, place.partition
            start, must_commit = place.offset, False
            if start > end_of[key] or committed_topic_id(place) not in (None, ids[place.topic]):
                start = OFFSET_BEGINNING
            elif start >= 0 and (deleted := beginning_of[key] - start) > 0:
                _log_deleted(*key, deleted)
                start, must_commit = beginning_of[key], True
            elif start < 0 and self._begins_at_end and key in self._known:
                start, must_commit = visible_end_of[key], True
            elif start < 0:
                start = OFFSET_BEGINNING
            partition = Partition(
                self, *key, ids[place.topic], start, end_of[key], is_at_least_once=self._topics[place.topic]
            )
            found.append((partition, must_commit))
        return found

    def _revoked(self, _: Consumer, places: list[TopicPartition]) -> None:
        self._remove_partitions(places, is_stored=True)

    def _lost(self, _: Consumer, places: list[TopicPartition]) -> None:
        """Handle lost partitions, which other members may have already."""
        self._remove_partitions(places, is_stored=False)

    def _remove_partitions(self, places: list[TopicPartition], *, is_stored: bool) -> None:
        for place in places:
            if (partition := self._partitions.pop((place.topic, place.partition), None)) is not None:
                partition.is_assigned = False
                if is_stored:
                    self._store([partition])
                self._call_on_loop(self._on_dropped, partition)

    def _store(self, partitions: Iterable[Partition]) -> bool:
        """Store the settled offsets, which the library commits on revocation; return whether some are new."""
        places = []
        for partition in partitions:
            if (settled := partition.settled) > partition.stored:
                partition.stored = settled
                places.append(_topic_partition(partition, settled))
        if places:
            # A revoked partition cannot be stored: its last records are redelivered to another member.
            with contextlib.suppress(KafkaException):
                self._consumer.store_offsets(offsets=places)
        return bool(places)

    def _report_committed(self, error: KafkaError | None, places: list[TopicPartition]) -> None:
        for place in places:
            partition = self._partitions.get((place.topic, place.partition))
            if error is None and place.error is None and place.offset >= 0 and partition is not None:
                self._call_on_loop(self._on_committed, partition.key, place.offset)

    def _call_on_loop(self, what: Callable[..., None], *arguments: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(what, *arguments)


class Throttle:
    """Limits the records per second. `minutes`: the number of minutes in which that caused a delay."""

    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        self._until = 0.0
        self._minute = -1
        self.minutes = 0
        self.remaining = UNLIMITED if limit is None else limit

    def pause(self) -> float:
        """Return the seconds until more records may be taken."""
        if self._limit is None:
            return 0.0
        if (now := time.monotonic()) >= self._until:
            self._until, self.remaining = now + 1.0, self._limit
        if self.remaining > 0:
            return 0.0
        if (minute := int(now // 60)) != self._minute:
            self._minute = minute
            self.minutes += 1
        return self._until - now

    def took(self, count: int) -> None:
        if self._limit is not None:
            self.remaining -= count


def _log_deleted(topic: str, number: int, records: int) -> None:
    log.warning("records deleted before they were read", address=topic, partition=number, records=records)


def _recreated(topic: str) -> NotConnected:
    return NotConnected(Detail.MISSING_ADDRESS, f"{topic}: the topic was deleted and created again")


def _topic_partition(partition: Partition, offset: int | None = None) -> TopicPartition:
    if offset is None:
        return TopicPartition(partition.topic, partition.number)
    return TopicPartition(partition.topic, partition.number, offset, metadata=partition.topic_id)
