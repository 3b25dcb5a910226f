"""Random sequences of messages, refusals and reports at a producer with a fake library."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

from confluent_kafka import KafkaError, KafkaException
from hypothesis import given, settings
from hypothesis import strategies as st

from connectivity.errors import ConnectivityError
from connectivity.transports.base import OutboundMessage
from connectivity.transports.kafka import producer as module
from connectivity.transports.kafka.producer import SMALL, KafkaProducer
from mappings.model.envelope import Envelope
from tests.support.dice import examples

MOST_FORMER = 2
TOPICS = "abcdefgh"
MISSING, FATAL = KafkaError(KafkaError._UNKNOWN_TOPIC), KafkaError(KafkaError._FATAL)

Report = Callable[[KafkaError | None, bytes], None]
Refusal = KafkaException | BufferError | None


class Library:
    """A fake client of the library. It checks that a topic is only at one client, and that its order stays."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.play: Play = settings["play"]
        self.play.libraries.append(self)
        self.known: set[str] = set()
        """The topics that have confirmed a message."""
        self.unconfirmed: dict[str, deque[tuple[bytes, Report]]] = {}

    def produce(self, topic: str, value: bytes, key: object, partition: int, report: Report, headers: object) -> None:
        play = self.play
        assert not play.is_stopped
        assert not any(topic in other.unconfirmed for other in play.libraries if other is not self)
        number = play.waiting[topic].popleft()
        assert number == int(value.split()[0])
        if (refusal := play.refusals.get(number)) is not None:
            raise refusal
        self.unconfirmed.setdefault(topic, deque()).append((value, report))

    def poll(self, timeout: float) -> None: ...

    def purge(self) -> None: ...


class Play:
    """A producer, its fake library, and what became of each message."""

    def __init__(self) -> None:
        self.libraries: list[Library] = []
        self.given = 0
        self.refusals: dict[int, Refusal] = {}
        """What the library raises for some of the messages."""
        self.waiting: dict[str, deque[int]] = {topic: deque() for topic in TOPICS}
        """The messages of each topic that the library has not got."""
        self.outcomes: dict[int, ConnectivityError | None] = {}
        self.is_stopped = False
        self.producer = KafkaProducer({"play": self}, "kafka", on_error=lambda *_: self.stop(), on_stuck=self.stop)

    def send(self, topic: str, size: int, more: int, refusal: Refusal = None) -> None:
        """Send a message; its outcome sends `more` messages to its topic, each with one to another topic."""
        if self.is_stopped:
            return
        number = self.given
        self.given += 1
        self.waiting[topic].append(number)
        self.refusals[number] = refusal

        def done(error: ConnectivityError | None) -> None:
            assert number not in self.outcomes
            self.outcomes[number] = error
            if more:
                self.send(topic, size, more - 1)
                self.send(TOPICS[TOPICS.index(topic) - 1], size, 0)

        self.producer.send(OutboundMessage(topic, Envelope(b"%d " % number + bytes(size))), done)

    def report(self, pick: int, error: KafkaError | None) -> None:
        if unconfirmed := [(library, topic) for library in self.libraries for topic in library.unconfirmed]:
            library, topic = unconfirmed[pick % len(unconfirmed)]
            value, report = library.unconfirmed[topic].popleft()
            if not library.unconfirmed[topic]:
                del library.unconfirmed[topic]
            if error is None:
                library.known.add(topic)
            report(error, value)

    def poll(self) -> None:
        if not self.is_stopped:
            self.producer._poll()

    def stop(self) -> None:
        if not self.is_stopped:
            self.is_stopped = True
            self.producer.stop(is_orderly=False)

    def check(self) -> None:
        producer = self.producer
        held = [message.envelope.payload for queue in producer._held.values() for message, _ in queue]
        sent = [
            (value, topic in library.known)
            for library in self.libraries
            for topic, queue in library.unconfirmed.items()
            for value, _ in queue
        ]
        assert producer.unconfirmed == len(sent)
        assert len(self.outcomes) + len(sent) + len(held) == self.given
        assert sent or not held
        doubtful = [*held, *(value for value, is_known in sent if not is_known)]
        assert producer.doubtful == sum(len(value) <= SMALL for value in doubtful)
        assert len(producer._former) <= MOST_FORMER

    def confirm_all(self) -> None:
        while not self.is_stopped and self.producer.unconfirmed:
            self.report(0, None)
        if not self.is_stopped:
            self.poll()
            self.check()
            assert len(self.outcomes) == self.given
            assert (self.producer._former, self.producer._held) == ([], {})

    async def end(self) -> None:
        self.stop()
        outcomes = len(self.outcomes)
        while any(library.unconfirmed for library in self.libraries):
            self.report(0, None)
        assert len(self.outcomes) == outcomes
        await asyncio.wrap_future(self.producer.gone)


sends = st.tuples(
    st.just(Play.send),
    st.sampled_from(TOPICS),
    st.sampled_from([0, SMALL]),
    st.sampled_from([0, 0, 1, 2]),
    st.sampled_from([None, None, None, KafkaException(MISSING), BufferError()]),
)
reports = st.tuples(st.just(Play.report), st.integers(0, 20), st.sampled_from([None, MISSING]))
steps = st.one_of(sends, sends, reports, st.tuples(st.just(Play.poll)))
fatal_send = st.tuples(
    st.just(Play.send), st.sampled_from(TOPICS), st.just(0), st.just(0), st.just(KafkaException(FATAL))
)
fatal_report = st.tuples(st.just(Play.report), st.integers(0, 20), st.just(FATAL))


@settings(max_examples=examples(500), deadline=None)
@given(
    st.lists(steps, min_size=10, max_size=100),
    st.none() | fatal_send | fatal_report,
    st.lists(sends, max_size=5),
    st.booleans(),
)
def test_each_message_has_one_outcome_and_each_topic_keeps_its_order(
    first: list[tuple[Any, ...]], fatal: tuple[Any, ...] | None, then: list[tuple[Any, ...]], confirms: bool
) -> None:
    async def run() -> None:
        play = Play()
        for step, *arguments in (*first, *filter(None, [fatal]), *then):
            step(play, *arguments)
            if not play.is_stopped:
                play.check()
        if confirms:
            play.confirm_all()
        await play.end()

    with patch.multiple(module, Producer=Library, MOST_TOPICS=2, MOST_FORMER=MOST_FORMER):
        asyncio.run(run())
