"""Things and policies as streams: clients follow and resend their events, and publish commands.

Case numbers are those of the cases for Streamr.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from connectivity.config.settings import Settings, SparkMode
from connectivity.sessions.base import RetentionTimes
from connectivity.sessions.stream_source import StreamSource
from connectivity.sessions.streamr.frame_cache import FrameCache
from connectivity.twins.decider import Decider
from mappings.errors import Fault
from mappings.ids import EntityId, EntityType
from mappings.model.signals import Event
from mappings.streamr.frames import PLAIN
from mappings.streams.entry import StreamEntry, encode_content
from tests.support.in_process.service import LAMP, NOW, command, streaming, until
from tests.support.in_process.streamr import (
    KEY,
    OPERATOR,
    Frame,
    StreamrHarness,
    error,
    offsets,
    on_policy,
    publish,
    resend,
    source,
    subscribe,
    subscribed,
    unsubscribe,
    unsubscribed,
)
from tests.support.streamr_frames import twin_event_of

pytestmark = pytest.mark.usefixtures("harnesses")

THING, POLICY = "things/acme.site:lamp-7", "policies/acme.site:tanks"
TANKS = EntityId(EntityType.POLICY, "acme.site", "tanks")
ALL = {"grant": ["READ", "WRITE"], "revoke": []}


def granting(*permissions: str) -> dict[str, list[str]]:
    return {"grant": list(permissions), "revoke": []}


async def ditto(streamr_harness: StreamrHarness, payload: bytes) -> int:
    """The status of a command in the Ditto protocol, by the operator."""
    return int((await streamr_harness.ask_ditto(payload))["status"])


async def with_lamp(*turns: Any, by: str = "acme:clients") -> StreamrHarness:
    """Return a harness with a lamp that was turned so many times.

    Its policy is that of the tanks; the holder of KEY may read and write all of it. `by` is the subject of the clients'
    source, which has no permissions by default.
    """
    streamr_harness = await StreamrHarness.filled(source("in", by))
    resources = {"stream:/": ALL, "thing:/": ALL, "policy:/": ALL}
    assert await ditto(streamr_harness, on_policy("modify", "/entries/pump/resources", resources)) == 204
    assert await ditto(streamr_harness, command("create", value={"policyId": "acme.site:tanks"})) == 201
    for value in turns:
        await turn(streamr_harness, value)
    streamr_harness.forget()
    return streamr_harness


async def turn(streamr_harness: StreamrHarness, value: Any) -> None:
    assert await ditto(streamr_harness, command("modify", "/attributes/on", value)) in (201, 204)


def event(frame: Frame) -> Event:
    """Return the event in a broadcast or a unicast."""
    _, stream, partition, timestamp, ttl, offset, previous, content_type, content = frame[3]
    assert content_type == 27
    return twin_event_of(StreamEntry(stream, partition, timestamp, ttl, offset, previous, encode_content(content)))


# --- reading ------------------------------------------------------------------------------------------------------------


async def test_a_subscriber_of_a_thing_gets_its_events_in_the_format_of_the_history() -> None:
    streamr_harness = await with_lamp(True)
    assert await streamr_harness.exchange("a", subscribe(stream=THING)) == [subscribed(THING)]
    await turn(streamr_harness, False)
    (frame,) = (await streamr_harness.frames("a", 2))[1:]
    assert frame[:3] == [0, 0, ""]
    assert frame[3][:3] == [28, THING, 0]
    assert frame[3][4:8] == [0, 3, 2, 27]
    assert json.loads(frame[3][8]) == {
        "topic": "acme.site/lamp-7/things/twin/events/modified",
        "headers": {"content-type": "application/json", "historical-headers": {}},
        "path": "/attributes/on",
        "value": False,
        "revision": 3,
        "timestamp": "2030-01-15T07:30:00.000000Z",
    }
    assert frame[3][3] == 1894692600000
    assert event(frame) == streamr_harness.history()[-1]


async def test_a_subscriber_of_a_policy_gets_its_events() -> None:
    streamr_harness = await with_lamp()
    assert await streamr_harness.exchange("a", subscribe(stream=POLICY)) == [subscribed(POLICY)]
    assert await ditto(streamr_harness, on_policy("modify", "/entries/more", {"subjects": {}, "resources": {}})) == 201
    (frame,) = (await streamr_harness.frames("a", 2))[1:]
    assert event(frame) == streamr_harness.history(TANKS)[-1]
    assert await streamr_harness.exchange("a", unsubscribe(stream=POLICY)) == [unsubscribed(POLICY)]
    assert await ditto(streamr_harness, on_policy("delete", "/entries/more")) == 204
    await streamr_harness.frames("a", 3)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"resend_all": True}, [1, 2, 3, 4, 5]),
        ({"resend_last": 2}, [4, 5]),
        ({"resend_from": 3}, [3, 4, 5]),
        ({"resend_from": 2, "resend_to": 4}, [2, 3, 4]),
        ({"resend_from_time": 1894692600000}, [1, 2, 3, 4, 5]),
        ({"resend_from": 6}, []),
        ({"resend_from_time": 1894692600001}, []),
    ],
)
async def test_events_of_a_thing_are_sent_again_like_messages(options: dict[str, Any], expected: list[int]) -> None:
    streamr_harness = await with_lamp(1, 2, 3, 4)
    frames = await streamr_harness.exchange("a", resend(stream=THING, **options), len(expected) + 2 if expected else 1)
    assert offsets(frames, 1) == expected
    assert [event(frame) for frame in frames if frame[1] == 1] == [
        found for found in streamr_harness.history() if found.revision in expected
    ]
    assert [frame[3][6] for frame in frames if frame[1] == 1] == [each - 1 if each > 1 else None for each in expected]
    place = {"stream": THING, "partition": 0, "sub": "a"}
    assert frames[-1] == [0, 5 if expected else 6, "", place]


async def test_a_resend_of_a_thing_that_is_erased_fails_with_410() -> None:
    streamr_harness = await with_lamp(1)
    streamr_harness.link.confirms = False
    streamr_harness.send("a", resend(stream=THING, resend_all=True))
    await until(lambda: offsets(streamr_harness.received("a"), 1) == [1, 2])
    streamr_harness.streams.fail_entity(LAMP, Fault(410, "streaming.subscription.erased", "erased"))
    streamr_harness.link.confirms = True
    streamr_harness.link.confirm()
    response = error((await streamr_harness.frames("a", 4))[-1])
    assert (response["status"], response["code"], response["sub"]) == (410, "streamr:resend.failed", "a")


async def test_a_resend_from_a_time_starts_with_the_millisecond_that_the_messages_show() -> None:
    """Events have microseconds, messages have milliseconds, cut off."""
    now = [NOW]
    streamr_harness = await StreamrHarness.filled(
        source("in", OPERATOR), decider=lambda store: Decider(store, now=lambda: now[0])
    )
    assert await ditto(streamr_harness, command("create", value={"policyId": "acme.site:tanks"})) == 201
    for microseconds in (1_000, 1_999, 2_000, 2_001, 3_500):
        now[0] = NOW.replace(microsecond=microseconds)
        await turn(streamr_harness, microseconds)
    start = int(NOW.timestamp() * 1000)
    for wanted, expected in ((1, [2, 3, 4, 5, 6]), (2, [4, 5, 6]), (3, [6]), (4, [])):
        request = resend(str(wanted), None, stream=THING, resend_from_time=start + wanted)
        frames = await streamr_harness.exchange("a", request, len(expected) + 2 if expected else 1)
        assert offsets(frames, 1) == expected
        assert all(frame[3][3] >= start + wanted for frame in frames if frame[1] == 1)


async def test_the_same_events_come_in_both_protocols_in_the_same_order() -> None:
    """A history and a live tail, of a client of the Ditto protocol and of one of this, byte for byte."""
    streamr_harness = await with_lamp(*range(7))
    await streamr_harness.exchange("a", subscribe(stream=THING))
    for value in ("x", {"deep": [1.50, "ü"]}, None):
        await turn(streamr_harness, value)
    live = (await streamr_harness.frames("a", 4))[1:]
    frames = await streamr_harness.exchange("a", resend(stream=THING, resend_all=True), 13)
    again = [frame for frame in frames if frame[1] == 1]
    assert [frame[3] for frame in again[-3:]] == [frame[3] for frame in live]
    number = len(streamr_harness.reported())
    ditto_source = len(streamr_harness.readers) - 1
    streamr_harness.deliver(streaming("subscribeForPersistedEvents", {}), source=ditto_source)
    await until(lambda: len(streamr_harness.reported()) > number)
    key = streamr_harness.reported()[-1]["value"]["subscriptionId"]
    streamr_harness.deliver(streaming("request", {"subscriptionId": key, "demand": 100}), source=ditto_source)
    await until(lambda: len(streamr_harness.reported()) >= number + 12)
    response = streamr_harness.reported()[number + 1 :]
    items = [each["value"]["item"] for each in response if each["topic"].endswith("/next")]
    assert [json.loads(frame[3][8]) for frame in again] == [_plain(item) for item in items]


def _plain(item: dict[str, Any]) -> dict[str, Any]:
    """An item of a history without what its message repeats of the subscribe."""
    own = {name: item["headers"][name] for name in ("content-type", "historical-headers") if name in item["headers"]}
    return {**item, "headers": own}


async def test_a_twin_has_one_partition_and_needs_no_definition_of_streams() -> None:
    streamr_harness = await with_lamp()
    resources = {"thing:/": granting("READ")}
    path = "/entries/public/resources"
    assert await ditto(streamr_harness, on_policy("modify", path, resources)) == 204
    (refused,) = await streamr_harness.exchange("a", subscribe(stream=THING, partition=1))
    assert error(refused)["error"] == f"Invalid partition 1 for stream {THING}"
    other = StreamrHarness(source("in", "acme:clients", payloadMapping=["Streamr"]), beside=streamr_harness)
    assert await other.exchange("a", subscribe(None, stream=THING)) == [subscribed(THING)]
    (refused,) = await other.exchange("a", subscribe(None, stream="commons"))
    assert error(refused)["status"] == 403
    await turn(streamr_harness, True)
    assert offsets(await other.frames("a", 3)) == [2]


async def test_subscribing_to_a_thing_requires_read_permission_on_all_of_it() -> None:
    streamr_harness = await with_lamp()
    resources = {"thing:/": granting("READ"), "thing:/attributes/pin": {"grant": [], "revoke": ["READ"]}}
    assert await ditto(streamr_harness, on_policy("modify", "/entries/pump/resources", resources)) == 204
    words = f"Not authorized to subscribe to stream {THING} and partition 0"
    for stream, key in ((THING, KEY), (POLICY, KEY), (THING, "wrong"), ("things/acme.site:none", KEY)):
        (refused,) = await streamr_harness.exchange("a", subscribe(key, stream=stream))
        assert error(refused)["error"] == words.replace(THING, stream)
        (refused,) = await streamr_harness.exchange("a", resend("s", key, stream=stream, resend_all=True))
        assert (error(refused)["status"], error(refused)["sub"]) == (403, "s")
    assert streamr_harness.following.followers(LAMP) == 0


# --- commands -----------------------------------------------------------------------------------------------------------


def modify(value: Any, path: str = "/attributes/on", **headers: Any) -> str:
    return command("modify", path, value, **headers).decode()


async def test_a_published_command_sends_its_event_to_the_subscribers() -> None:
    streamr_harness = await with_lamp()
    await streamr_harness.exchange("a", subscribe(stream=THING))
    streamr_harness.send("b", publish(modify(True), stream=THING))
    (frame,) = (await streamr_harness.frames("a", 2))[1:]
    assert streamr_harness.received("b") == []
    assert event(frame) == streamr_harness.history()[-1]


async def test_a_successful_command_returns_no_reply_even_when_it_requests_one() -> None:
    streamr_harness = await with_lamp()
    asking = modify(True, correlation_id="mine", requested_acks=["twin-persisted", "other"], response_required=True)
    streamr_harness.send("a", publish(asking, stream=THING), publish(modify(False), stream=THING, ts="soon", pkey=5))
    assert len(await streamr_harness.settled(2)) == 2
    assert streamr_harness.values() == [True, False]
    await streamr_harness.frames("a", 0)


async def test_a_thing_can_be_created_and_a_policy_changed_by_publishing() -> None:
    streamr_harness = await with_lamp()
    new = command("create", value={"policyId": "acme.site:tanks"}, name="new").decode()
    entry = on_policy("modify", "/entries/more", {"subjects": {}, "resources": {}}).decode()
    streamr_harness.send("a", publish(new, stream="things/acme.site:new"), publish(entry, stream=POLICY))
    await streamr_harness.settled(2)
    assert streamr_harness.history(EntityId(EntityType.THING, "acme.site", "new"))[0].action == "created"
    assert streamr_harness.history(TANKS)[-1].path == "/entries/more"
    await streamr_harness.frames("a", 0)


async def test_a_command_that_fails_is_answered_with_its_own_error() -> None:
    streamr_harness = await with_lamp()
    refused: list[tuple[str, Any, tuple[int, str]]] = [
        (modify(1), None, (404, "things:thing.notfound")),
        (command("delete", "/attributes/none").decode(), KEY, (404, "things:attribute.notfound")),
        (command("create", value={}).decode(), KEY, (409, "things:thing.conflict")),
        (modify(True, if_match='"rev:99"'), KEY, (412, "things:precondition.failed")),
    ]
    assert await ditto(streamr_harness, on_policy("modify", "/entries/operator/resources", {"policy:/": ALL})) == 204
    before = len(streamr_harness.history())
    for content, key, (status, code) in refused:
        (frame,) = await streamr_harness.exchange("a", publish(content, key, stream=THING), correlation_id="c-1")
        response = error(frame)
        assert (response["status"], response["code"], response["stream"]) == (status, code, THING)
        assert response["error"]
    assert len(streamr_harness.history()) == before


async def test_content_that_is_no_twin_command_for_the_same_thing_is_refused() -> None:
    streamr_harness = await with_lamp()
    before = len(streamr_harness.history())
    for content in (
        '{"v":1}',
        command("modify", "/attributes/on", 1, name="other").decode(),
        on_policy("delete").decode(),
        streaming("subscribeForPersistedEvents", {}).decode(),
        modify(1).replace("/twin/", "/live/"),
    ):
        (frame,) = await streamr_harness.exchange("a", publish(content, stream=THING))
        assert error(frame)["error"] == f"Publish request failed: content is not a Ditto command for {THING}"
    assert len(streamr_harness.history()) == before
    (frame,) = await streamr_harness.exchange("a", publish(modify(1), "wrong", stream=THING))
    assert error(frame)["status"] == 401


async def test_case_b12_a_command_that_comes_again_is_carried_out_once() -> None:
    streamr_harness = await with_lamp()
    payload = json.dumps(publish(modify(True), stream=THING)).encode()
    for _ in range(2):
        streamr_harness.send("a", payload, correlation_id="c-1")
    again = [streamr_harness.delivery(payload, "d-1", redelivered=is_again, reply_to="a") for is_again in (False, True)]
    for delivery in again:
        streamr_harness.handle(delivery)
    await streamr_harness.settled(4)
    assert streamr_harness.values() == [True, True]


async def test_a_message_and_a_command_under_the_same_name_are_two() -> None:
    streamr_harness = await with_lamp()
    for _ in range(2):
        streamr_harness.send("a", publish(), correlation_id="c-1")
        streamr_harness.send("a", publish(modify(True), stream=THING), correlation_id="c-1")
    await streamr_harness.settled(4)
    assert (streamr_harness.values(), streamr_harness.stored()) == ([True], ['{"v":1}'])
    await streamr_harness.frames("a", 0)


async def test_a_device_can_only_use_the_thing_that_its_source_enforces() -> None:
    streamr_harness = await with_lamp()
    enforcement = {"input": "{{ header:device-id }}", "filters": ["{{ thing:id }}"]}
    own = source("in", OPERATOR, enforcement=enforcement)
    devices = StreamrHarness(own, beside=streamr_harness)
    devices.send("a", publish(modify(True), stream=THING), device_id="acme.site:lamp-7")
    await until(streamr_harness.values)
    assert await devices.exchange("a", subscribe(stream=THING), device_id="acme.site:lamp-7") == [subscribed(THING)]
    for request in (publish(modify(False), stream=THING), subscribe(stream=THING), subscribe(stream="tank")):
        (refused,) = await devices.exchange("a", request, device_id="acme.site:lamp-8")
        assert error(refused)["code"] == "connectivity:connection.id.enforcement.failed"
    assert streamr_harness.values() == [True]


async def test_a_publisher_without_an_address_changes_the_twin_too() -> None:
    streamr_harness = await with_lamp()
    streamr_harness.send(None, publish(modify(True), stream=THING), publish(modify(1), "wrong", stream=THING))
    await streamr_harness.settled(2)
    assert streamr_harness.values() == [True]
    assert streamr_harness.link.published == []


async def test_a_client_with_a_key_also_has_the_permissions_of_its_source() -> None:
    streamr_harness = await with_lamp(by=OPERATOR)
    assert await ditto(streamr_harness, on_policy("modify", "/entries/pump/resources", {"stream:/": ALL})) == 204
    streamr_harness.send("a", publish(modify(True), stream=THING))
    await until(streamr_harness.values)
    assert streamr_harness.values() == [True]


# --- lifetimes ----------------------------------------------------------------------------------------------------------


async def test_a_message_contains_its_time_to_live() -> None:
    streamr_harness = await with_lamp(True)
    kept = Settings.model_validate({"lake": {"retention": {"default": "forever", "acme.site": "30d"}}}).lake.retention
    frames = FrameCache(
        StreamSource(streamr_harness.store, RetentionTimes(kept, SparkMode.EMBEDDED), lambda: streamr_harness.now)
    )
    last = streamr_harness.history()[-1]
    assert (frames.source.entry(last).ttl, json.loads(frames.broadcast(last, PLAIN))[3][4]) == (
        30 * 86_400,
        30 * 86_400,
    )
    assert frames.source.entry(last._replace(timestamp="2030-01-14T07:30:00.000000Z")).ttl == 29 * 86_400
    of_stream = last._replace(entity=EntityId(EntityType.STREAM, "", "tank/0"), value=b'"x"')
    assert frames.source.entry(of_stream).ttl == 0
