"""Published messages: what is stored of them, where and how often, and the responses to the publisher.

Case numbers are those of the cases for Streamr.
"""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest

from connectivity.authorization.quotas import Quotas
from connectivity.config.quotas import QuotaRule
from connectivity.sessions.stream_source import CHOSEN_NAME_SECONDS
from connectivity.transports.base import Outcome
from connectivity.transports.kafka.records import envelope_of
from mappings.streams.stream_id import partition_id
from tests.support.in_process.service import NOW, Disk, pause, until
from tests.support.in_process.streamr import (
    KEY,
    OTHER,
    WRITER,
    StreamrHarness,
    error,
    offsets,
    publish,
    resend,
    subscribe,
)
from tests.support.kafka_record import Record

pytestmark = pytest.mark.usefixtures("harnesses")

MILLISECONDS = int(NOW.timestamp() * 1000)


@pytest.mark.parametrize(
    ("request_", "words", "status"),
    [
        pytest.param({"type": "publish"}, "Publish request is missing the stream id!", 400, id="P01"),
        pytest.param(publish({"v": 1}), "Message must be stringified JSON!", 400, id="P02 object"),
        pytest.param(publish(1), "Message must be stringified JSON!", 400, id="P02 number"),
        pytest.param({"type": "publish", "stream": "tank"}, "Message must be stringified JSON!", 400, id="P02 nothing"),
        pytest.param(publish(""), "Publish request failed: empty content", 400, id="P03"),
        pytest.param(publish("{nope"), "Publish request failed: content is not JSON", 400, id="P04"),
        pytest.param(publish(ts="soon"), "Invalid timestamp: soon", 400, id="P08 text"),
        pytest.param(publish(ts=True), "Invalid timestamp: true", 400, id="P08 boolean"),
        pytest.param(publish(key=OTHER), "You are not allowed to write to stream tank", 403, id="P10"),
        pytest.param(publish(key=None), "You are not allowed to write to stream tank", 403, id="P10 without a key"),
        pytest.param(publish(stream="nowhere"), "Stream nowhere not found.", 404, id="P11"),
        pytest.param(
            publish(key="not a key"), "Authentication failed while trying to publish to stream tank", 401, id="P12"
        ),
        pytest.param(publish(pkey=5), "Publish request failed: pkey must be a string", 400, id="P16"),
    ],
)
async def test_cases_p01_to_p16_an_invalid_publish_request_is_refused_and_not_stored(
    request_: dict[str, Any], words: str, status: int
) -> None:
    streamr_harness = await StreamrHarness.filled()
    (refused,) = await streamr_harness.exchange("a", request_)
    response = error(refused)
    assert (response["error"], response["status"]) == (words, status)
    assert await streamr_harness.settled(1)
    assert streamr_harness.stored() == []


async def test_a_message_beyond_the_quota_of_its_publisher_is_refused_and_not_stored() -> None:
    quotas = Quotas([QuotaRule(subjects=("*",), events_per_day=2)])
    streamr_harness = await StreamrHarness.filled(quotas=quotas)
    streamr_harness.send("a", publish("1"), publish("2"))
    await streamr_harness.settled(2)
    (refused,) = await streamr_harness.exchange("a", publish("3"))
    response = error(refused)
    assert response["status"] == 429
    assert response["error"].startswith("Limit exceeded: the subject '")
    assert response["error"].endswith("uses 2 of its quota events_per_day of 2")
    assert streamr_harness.stored() == ["1", "2"]


def use(quotas: Quotas) -> list[int]:
    return list(quotas._daily.used.values())


async def test_a_message_that_is_stored_at_the_second_attempt_is_added_to_the_use_once() -> None:
    disk = Disk()
    quotas = Quotas([QuotaRule(subjects=("*",), events_per_day=9)])
    streamr_harness = await StreamrHarness.filled(quotas=quotas, journal=disk)
    disk.full = True
    streamr_harness.send("a", publish("1"), publish("2"))
    await until(lambda: bool(streamr_harness.postponed))
    assert use(quotas) == []
    disk.full = False
    await until(lambda: streamr_harness.store.commits.is_available)
    streamr_harness.dispatcher.handle(streamr_harness.postponed, lambda _: None)
    await until(lambda: streamr_harness.stored() == ["1", "2"])
    assert use(quotas) == [2]


async def test_a_message_that_comes_again_is_not_added_to_the_use() -> None:
    quotas = Quotas([QuotaRule(subjects=("*",), events_per_day=1)])
    streamr_harness = await StreamrHarness.filled(quotas=quotas)
    streamr_harness.send("a", publish("1"), correlation_id="one")
    await until(lambda: streamr_harness.stored() == ["1"])
    streamr_harness.send("a", publish("1"), correlation_id="one")
    await streamr_harness.store.commits.barrier()
    assert streamr_harness.stored() == ["1"]
    assert use(quotas) == [1]
    assert streamr_harness.received("a") == []


async def test_case_p04_a_definition_may_take_any_text() -> None:
    streamr_harness = await StreamrHarness.filled(options={"acceptNonJson": True})
    await streamr_harness.exchange("a", subscribe())
    assert (await streamr_harness.exchange("a", publish("{nope")))[0][3][8] == "{nope"
    assert streamr_harness.stored() == ["{nope"]


async def test_case_p05_any_json_is_published_to_the_letter() -> None:
    streamr_harness = await StreamrHarness.filled()
    contents = ["[1,2]", '"s"', "null", '{ "a" : 1.0 }', '{"a":1,"a":2}', '"\\u00fc\\ud83d\\ude00"', '"ü😀"']
    await streamr_harness.exchange("a", subscribe())
    streamr_harness.send("a", *map(publish, contents))
    assert [frame[3][8] for frame in (await streamr_harness.frames("a", 8))[1:]] == contents
    assert streamr_harness.stored() == contents


@pytest.mark.parametrize(
    ("ts", "milliseconds"),
    [
        pytest.param(1700000000123, 1700000000123, id="P06"),
        pytest.param("1700000000123", 1700000000123, id="P07 number"),
        pytest.param("2023-11-14T22:13:20.123Z", 1700000000123, id="P07 date"),
        pytest.param(0, MILLISECONDS, id="P09"),
        pytest.param(None, MILLISECONDS, id="P09 nothing"),
    ],
)
async def test_cases_p06_to_p09_a_message_has_the_time_that_its_publisher_names(ts: Any, milliseconds: int) -> None:
    streamr_harness = await StreamrHarness.filled()
    await streamr_harness.exchange("a", subscribe())
    assert (await streamr_harness.exchange("a", publish(ts=ts)))[0][3][3] == milliseconds


@pytest.mark.parametrize(
    ("hash", "partitions"),
    [pytest.param("murmur3-swapped", [1, 7, 8], id="P13"), pytest.param("md5", [8, 9, 9], id="P14")],
)
async def test_cases_p13_and_p14_a_key_picks_the_partition(hash: str, partitions: list[int]) -> None:
    streamr_harness = await StreamrHarness.filled(options={"hash": hash})
    keys = ["sensor-a", "sensor-b", "日本"]
    streamr_harness.send(None, *(publish(json.dumps(key), pkey=key, stream="many") for key in keys))
    await streamr_harness.settled(3)
    for key, partition in zip(keys, partitions, strict=True):
        assert json.dumps(key) in streamr_harness.stored("many", partition)


async def test_case_p15_without_a_key_every_partition_is_used() -> None:
    streamr_harness = await StreamrHarness.filled()
    await streamr_harness.publish(1000, "many")
    assert all(streamr_harness.stored("many", partition) for partition in range(10))


async def test_case_p17_a_key_that_may_only_write_may_publish() -> None:
    streamr_harness = await StreamrHarness.filled()
    streamr_harness.send("a", publish(key=WRITER))
    await streamr_harness.settled(1)
    assert (streamr_harness.stored(), streamr_harness.received("a")) == (['{"v":1}'], [])


async def test_case_p18_messages_of_one_batch_are_stored_in_their_order() -> None:
    streamr_harness = await StreamrHarness.filled()
    await streamr_harness.exchange("a", subscribe())
    streamr_harness.send("b", publish("1"), publish("2"))
    frames = await streamr_harness.frames("a", 3)
    assert [frame[3][5:] for frame in frames[1:]] == [[1, None, 27, "1"], [2, 1, 27, "2"]]


async def test_case_p19_each_partition_applies_to_itself() -> None:
    streamr_harness = await StreamrHarness.filled()
    streamr_harness.send("a", subscribe(stream="pair", partition=0), subscribe(stream="pair", partition=1))
    await streamr_harness.frames("a", 2)
    await streamr_harness.publish(20, "pair")
    await until(lambda: len(streamr_harness.received("a")) == 22)
    for partition in (0, 1):
        messages = [frame[3] for frame in streamr_harness.received("a")[2:] if frame[3][2] == partition]
        assert [message[5] for message in messages] == list(range(1, len(messages) + 1))
        assert [message[6] for message in messages] == [None, *range(1, len(messages))]


async def test_a_clock_that_goes_back_leaves_histories_in_order() -> None:
    streamr_harness = await StreamrHarness.filled(messages=1)
    streamr_harness.now = NOW - timedelta(hours=1)
    await streamr_harness.publish(1)
    times = [event.timestamp for event in streamr_harness.history(partition_id("tank", 0))]
    assert times == sorted(times)


async def test_case_b03_a_client_without_a_reply_address_can_only_publish() -> None:
    streamr_harness = await StreamrHarness.filled(messages=1)
    streamr_harness.send(None, publish("2"), publish("{nope"), subscribe(), resend(resend_all=True), {"type": "dance"})
    assert len(await streamr_harness.settled(5)) == 5
    await pause()
    assert streamr_harness.stored() == ['{"n": 1}', "2"]
    assert (streamr_harness.link.published, list(streamr_harness.streams)) == ([], [])
    assert streamr_harness.count("in", "unanswerable") == 4


# again


async def test_case_b12_a_message_with_a_known_correlation_id_is_stored_once() -> None:
    streamr_harness = await StreamrHarness.filled()
    await streamr_harness.exchange("b", subscribe())
    for redelivered in (False, True, False):
        payload = json.dumps(publish()).encode()
        headers = {"reply_to": "a", "correlation_id": "c-1"}
        streamr_harness.handle(streamr_harness.delivery(payload, None, redelivered=redelivered, **headers))
    assert len(await streamr_harness.settled(4)) == 4
    assert offsets(await streamr_harness.frames("b", 2)) == [1]
    assert streamr_harness.stored() == ['{"v":1}']
    assert streamr_harness.count("in", "answered_again") == 2


async def test_a_correlation_id_represents_a_message_of_its_session_alone() -> None:
    streamr_harness = await StreamrHarness.filled()
    for client in ("a", "b", None):
        streamr_harness.send(client, publish(), correlation_id="c-1")
    await streamr_harness.settled(3)
    assert len(streamr_harness.stored()) == 3


async def test_a_correlation_id_represents_a_message_for_five_minutes() -> None:
    streamr_harness = await StreamrHarness.filled()
    for seconds in (0, CHOSEN_NAME_SECONDS - 1, CHOSEN_NAME_SECONDS, CHOSEN_NAME_SECONDS + 1):
        streamr_harness.now = NOW + timedelta(seconds=seconds)
        streamr_harness.send("a", publish(str(seconds)), correlation_id="c-1")
    await streamr_harness.settled(4)
    assert streamr_harness.stored() == ["0", str(CHOSEN_NAME_SECONDS)]


async def test_a_message_with_a_correlation_id_that_is_redelivered_after_five_minutes_is_stored_once() -> None:
    streamr_harness = await StreamrHarness.filled()
    payload, headers = json.dumps(publish()).encode(), {"reply_to": "a", "correlation_id": "c-1"}
    for minutes, name, redelivered, stored in ((0, "d-7", False, 1), (6, "d-7", True, 1), (6, "d-8", True, 2)):
        streamr_harness.now = NOW + timedelta(minutes=minutes)
        streamr_harness.handle(streamr_harness.delivery(payload, name, redelivered=redelivered, **headers))
        await streamr_harness.store.commits.barrier()
        assert len(streamr_harness.stored()) == stored


async def test_an_idempotency_key_prevents_duplicates_without_a_reply_address() -> None:
    streamr_harness = await StreamrHarness.filled()
    for _ in range(2):
        streamr_harness.send(None, publish(), idempotency_key="k-1")
    await streamr_harness.settled(2)
    assert len(streamr_harness.stored()) == 1


async def test_a_kafka_record_without_a_correlation_id_that_is_read_again_is_stored_once() -> None:
    streamr_harness = await StreamrHarness.filled()
    record: Any = Record([("reply-to", b"a")], value=json.dumps(publish()).encode())
    for redelivered in (False, True):
        delivery = streamr_harness.delivery(b"", "in/0/7", redelivered=redelivered)
        delivery.envelope = envelope_of(record, "in")
        streamr_harness.handle(delivery)
        await pause()
    await streamr_harness.settled(2)
    assert streamr_harness.stored() == ['{"v":1}']


async def test_a_redelivered_message_is_stored_once() -> None:
    streamr_harness = await StreamrHarness.filled()
    payload = json.dumps(publish()).encode()
    for redelivered in (False, True):
        streamr_harness.handle(streamr_harness.delivery(payload, "d-7", redelivered=redelivered, reply_to="a"))
        await pause()
    await streamr_harness.settled(2)
    streamr_harness.handle(streamr_harness.delivery(payload, "d-7", reply_to="a"))
    await streamr_harness.settled(3)
    assert len(streamr_harness.stored()) == 2


# trouble


async def test_a_message_is_acknowledged_when_it_is_durable() -> None:
    streamr_harness = await StreamrHarness.filled()
    streamr_harness.disk.hold()
    streamr_harness.send("a", publish())
    await pause()
    assert streamr_harness.outcomes == []
    streamr_harness.disk.release()
    await streamr_harness.settled(1)


async def test_while_the_disk_is_full_messages_wait_and_are_stored_once_in_their_order() -> None:
    streamr_harness = await StreamrHarness.filled()
    await streamr_harness.exchange("a", subscribe())
    streamr_harness.forget()
    streamr_harness.disk.full = True
    streamr_harness.send("a", publish("1"), publish("2"))
    await until(lambda: len(streamr_harness.postponed) == 2)
    assert (streamr_harness.outcomes, streamr_harness.received("a")) == ([], [])
    streamr_harness.disk.full = False
    await streamr_harness.store.commits.wait_available()
    again, streamr_harness.postponed = list(streamr_harness.postponed), []
    streamr_harness.dispatcher.handle(again, streamr_harness.postponed.extend)
    await streamr_harness.settled(2)
    assert streamr_harness.stored() == ["1", "2"]
    assert offsets(await streamr_harness.frames("a", 2)) == [1, 2]


async def test_a_message_is_stored_once_when_the_result_of_its_commit_is_lost() -> None:
    streamr_harness = await StreamrHarness.filled()
    streamr_harness.disk.loses_answers = True
    streamr_harness.send("a", publish("1"))
    await until(lambda: streamr_harness.postponed)
    await streamr_harness.store.commits.wait_available()
    again, streamr_harness.postponed = list(streamr_harness.postponed), []
    streamr_harness.dispatcher.handle(again, streamr_harness.postponed.extend)
    await streamr_harness.settled(1)
    assert streamr_harness.stored() == ["1"]


async def test_a_message_that_cannot_be_stored_returns_an_error_and_the_other_messages_are_stored() -> None:
    streamr_harness = await StreamrHarness.filled()
    streamr_harness.disk.rejected.add(b"poison")
    streamr_harness.send("a", publish("1"), publish('"poison"'), publish("3"))
    await until(lambda: streamr_harness.postponed or len(streamr_harness.outcomes) == 3)
    while streamr_harness.postponed:
        again, streamr_harness.postponed = list(streamr_harness.postponed), []
        streamr_harness.dispatcher.handle(again, streamr_harness.postponed.extend)
        await until(lambda: streamr_harness.postponed or len(streamr_harness.outcomes) == 3)
    (refused,) = await streamr_harness.frames("a", 1)
    response = error(refused)
    assert (response["error"], response["status"]) == ("Publish request failed: it cannot be stored", 503)
    assert streamr_harness.stored() == ["1", "3"]
    assert {outcome for _, outcome in streamr_harness.outcomes} == {Outcome.SETTLED}


async def test_an_error_frame_settles_its_delivery_when_a_link_has_it() -> None:
    streamr_harness = await StreamrHarness.filled()
    streamr_harness.outbox.detach()
    streamr_harness.send("a", publish(key=OTHER))
    await pause()
    assert streamr_harness.outcomes == []
    streamr_harness.outbox.attach(streamr_harness.link)
    await streamr_harness.settled(1)
    assert error(streamr_harness.received("a")[0])["status"] == 403
    assert KEY not in str(streamr_harness.received("a"))
