"""Polling of the library by the producer, with a fake library."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
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
    library: Any = made._producer

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
    library: Any = made._producer
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
