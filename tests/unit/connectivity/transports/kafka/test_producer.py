"""Polling of the library by the producer, with a fake library."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from connectivity.errors import ConnectivityError, MessageRefused
from connectivity.transports.base import OutboundMessage
from connectivity.transports.kafka import producer as module
from connectivity.transports.kafka.producer import KafkaProducer
from mappings.model.envelope import Envelope
from tests.support.wait import wait_until


class Library:
    """A fake producer with preset responses."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.polls: list[Callable[[], None]] = []
        self.looks = 0
        self.reports: list[Callable[[KafkaError | None, Any], None]] = []

    def produce(
        self,
        topic: str,
        value: bytes,
        key: bytes | None,
        partition: int,
        on_delivery: Callable[[KafkaError | None, Any], None],
        headers: object,
    ) -> None:
        self.reports.append(on_delivery)

    def poll(self, timeout: float) -> None:
        self.looks += 1
        if self.polls:
            self.polls.pop(0)()

    def purge(self) -> None:
        pass


class DeletedTopicMessage:
    """A message of the library that was not sent."""

    def topic(self) -> str:
        return "alarms"

    def __len__(self) -> int:
        return 1


async def test_polling_continues_after_an_error_in_one_confirm(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop_errors: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: loop_errors.append(str(context["exception"])))
    monkeypatch.setattr(module, "Producer", Library)
    stuck: list[int] = []
    made = KafkaProducer(
        {}, "kafka", on_error=lambda *_: None, on_stuck=lambda: stuck.append(library.looks), confirm_timeout=0.0
    )
    library: Any = made._client.producer

    def wrong() -> None:
        raise RuntimeError("a mistake in a confirm")

    library.polls += [wrong, wrong]
    made.unconfirmed = 1
    # As the event loop calls it: its exceptions are not passed on.
    asyncio.get_running_loop().call_soon(made.start)
    await wait_until(lambda: library.looks >= 3 and len(stuck) >= 2)
    assert loop_errors == ["a mistake in a confirm"] * 2
    made.stop(is_orderly=False)
    await asyncio.wrap_future(made.gone)


async def test_a_message_whose_topic_is_deleted_before_it_is_sent_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library ends the queues of the topic's partitions, with an error that it also uses at its own end."""
    monkeypatch.setattr(module, "Producer", Library)
    link_errors: list[KafkaError] = []
    made = KafkaProducer({}, "kafka", on_error=lambda error, _: link_errors.append(error), on_stuck=lambda: None)
    library: Any = made._client.producer
    outcomes: list[ConnectivityError | None] = []
    made.send(OutboundMessage("alarms", Envelope(b"")), outcomes.append)
    [report] = library.reports
    report(KafkaError(KafkaError._DESTROY), DeletedTopicMessage())
    assert [(type(each), str(each)) for each in outcomes] == [
        (MessageRefused, "missing address: topic alarms: the partition no longer exists")
    ]
    assert (made.unconfirmed, link_errors) == (0, [])
    made.stop(is_orderly=False)
    await asyncio.wrap_future(made.gone)


async def test_a_closed_producer_does_not_keep_the_messages_that_were_not_confirmed() -> None:
    """The library keeps a message's callback until it has called it."""

    class Outcome:
        def __call__(self, error: ConnectivityError | None) -> None: ...

    made = KafkaProducer(
        {"bootstrap.servers": "127.0.0.1:1", "log_level": 0},
        "kafka",
        on_error=lambda *_: None,
        on_stuck=lambda: None,
    )
    done = Outcome()
    kept = weakref.ref(done)
    made.send(OutboundMessage("alarms", Envelope(b"")), done)
    del done
    made.stop(is_orderly=False)
    await asyncio.wrap_future(made.gone)
    assert kept() is None


async def test_a_message_for_a_producer_that_has_failed_ends_the_link_and_is_not_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The library reports its fatal errors later: as refused, the message would not be sent on the next link."""

    class FailedLibrary(Library):
        def produce(self, *arguments: object, **options: object) -> None:
            raise KafkaException(KafkaError(KafkaError._FATAL))

    monkeypatch.setattr(module, "Producer", FailedLibrary)
    link_errors: list[KafkaError] = []
    made = KafkaProducer({}, "kafka", on_error=lambda error, _: link_errors.append(error), on_stuck=lambda: None)
    outcomes: list[ConnectivityError | None] = []
    made.send(OutboundMessage("alarms", Envelope(b"")), outcomes.append)
    assert (outcomes, [error.code() for error in link_errors]) == ([], [KafkaError._FATAL])
    made.stop(is_orderly=False)
    await asyncio.wrap_future(made.gone)


class Libraries:
    """A producer whose clients of the library are fake and have two topics each."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sent: list[list[str]] = []
        """The messages of each client, as `topic payload`."""
        self.reports: list[list[Callable[[KafkaError | None, Any], None]]] = []
        self.ended: list[int] = []
        libraries = self

        class Numbered(Library):
            def __init__(self, settings: dict[str, Any]) -> None:
                super().__init__(settings)
                self.number = len(libraries.sent)
                libraries.sent.append([])
                libraries.reports.append(self.reports)

            def produce(self, topic: str, value: bytes, *arguments: Any, **options: Any) -> None:
                super().produce(topic, value, *arguments, **options)
                libraries.sent[self.number].append(f"{topic} {value.decode()}")

            def flush(self, timeout: float) -> None:
                pass

            def __del__(self) -> None:
                libraries.ended.append(self.number)

        monkeypatch.setattr(module, "Producer", Numbered)
        monkeypatch.setattr(module, "MOST_TOPICS", 2)
        self.producer = KafkaProducer({}, "kafka", on_error=lambda *_: None, on_stuck=lambda: None)

    def send(self, *messages: str) -> None:
        for message in messages:
            topic, payload = message.split()
            self.producer.send(OutboundMessage(topic, Envelope(payload.encode())), lambda _: None)

    def confirm(self, library: int, message: int) -> None:
        self.reports[library][message](None, DeletedTopicMessage())


@pytest.fixture
async def libraries(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Libraries]:
    made = Libraries(monkeypatch)
    made.producer.start()
    yield made
    made.producer.stop(is_orderly=True)
    await asyncio.wrap_future(made.producer.gone)
    assert sorted(made.ended) == list(range(len(made.sent)))


async def test_a_client_of_the_library_with_enough_topics_ends_when_its_messages_are_confirmed(
    libraries: Libraries,
) -> None:
    """It remembers every topic, and addresses from placeholders can name any number of them."""
    libraries.send("a 1", "b 1", "c 1", "c 2")
    assert libraries.sent == [["a 1", "b 1"], ["c 1", "c 2"]]
    libraries.confirm(0, 1)
    await wait_for_polls(libraries, 3)
    assert libraries.ended == []
    libraries.confirm(0, 0)
    await wait_until(lambda: libraries.ended == [0])
    libraries.send("d 1", "e 1")
    libraries.confirm(1, 0)
    libraries.confirm(1, 1)
    libraries.confirm(1, 2)
    await wait_until(lambda: libraries.ended == [0, 1])
    assert libraries.sent[1:] == [["c 1", "c 2", "d 1"], ["e 1"]]


async def test_a_former_client_ends_once_if_the_producer_stops_in_its_last_poll(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An error of the library may follow the last confirm, and stops the producer."""
    libraries = Libraries(monkeypatch)
    libraries.send("a 1", "b 1", "c 1")

    def end() -> None:
        libraries.confirm(0, 0)
        libraries.confirm(0, 1)
        libraries.producer.stop(is_orderly=False)

    libraries.producer._former[0].producer.polls.append(end)  # type: ignore[attr-defined]
    libraries.producer.start()
    for thread in threading.enumerate():
        if thread.name == "kafka producer's end":
            thread.join()
    assert libraries.producer.gone.done()
    assert sorted(libraries.ended) == [0, 1]


async def test_messages_of_a_topic_wait_until_the_former_client_has_confirmed_the_earlier_ones(
    libraries: Libraries,
) -> None:
    libraries.send("a 1", "a 2", "b 1", "c 1", "a 3", "b 2", "a 4", "c 2")
    assert libraries.sent == [["a 1", "a 2", "b 1"], ["c 1", "c 2"]]
    libraries.confirm(0, 0)
    libraries.confirm(0, 2)
    assert libraries.sent[1] == ["c 1", "c 2", "b 2"]
    libraries.confirm(0, 1)
    # The second client has two topics already.
    assert libraries.sent[2:] == [["a 3", "a 4"]]
    libraries.send("a 5", "b 3")
    assert libraries.sent[2:] == [["a 3", "a 4", "a 5"]]
    libraries.confirm(1, 2)
    assert libraries.sent[2:] == [["a 3", "a 4", "a 5", "b 3"]]


async def test_a_refused_message_of_a_former_client_makes_way_for_the_next_ones(libraries: Libraries) -> None:
    libraries.send("a 1", "b 1", "c 1", "a 2")
    libraries.reports[0][0](KafkaError(KafkaError._UNKNOWN_TOPIC), DeletedTopicMessage())
    assert libraries.sent[1] == ["c 1", "a 2"]


async def test_the_number_of_former_clients_is_bounded(libraries: Libraries) -> None:
    libraries.send(*(f"{topic} 1" for topic in "abcdefghijklmn"))
    assert [len(sent) for sent in libraries.sent] == [2, 2, 2, 2, 6]
    libraries.confirm(1, 0)
    libraries.confirm(1, 1)
    await wait_until(lambda: libraries.ended == [1])
    libraries.send("o 1")
    assert libraries.sent[5] == ["o 1"]


async def test_small_messages_to_topics_that_have_confirmed_none_are_doubtful(libraries: Libraries) -> None:
    missing = KafkaError(KafkaError._UNKNOWN_TOPIC)
    libraries.send("a 1", "a 2", "b 1", f"b {'2' * (module.SMALL + 1)}", "c 1", "a 3")
    assert libraries.producer.doubtful == 5
    libraries.reports[0][2](missing, DeletedTopicMessage())
    assert libraries.producer.doubtful == 4
    libraries.confirm(0, 0)
    assert libraries.producer.doubtful == 2
    libraries.confirm(0, 1)
    # It is sent by the next client, which does not know the topic.
    assert libraries.sent[1:] == [["c 1", "a 3"]]
    assert libraries.producer.doubtful == 2
    libraries.confirm(1, 0)
    libraries.confirm(1, 1)
    libraries.send("c 2")
    assert libraries.producer.doubtful == 0


async def wait_for_polls(libraries: Libraries, number: int) -> None:
    looks = libraries.producer._client.producer.looks  # type: ignore[attr-defined]
    await wait_until(lambda: libraries.producer._client.producer.looks >= looks + number)  # type: ignore[attr-defined]
