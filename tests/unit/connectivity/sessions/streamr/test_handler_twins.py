"""Things and policies as streams: their events are followed and asked for again, commands on them are published.

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
from mappings.ids import EntityId, EntityType
from mappings.model.signals import Event
from mappings.streamr.frames import PLAIN
from mappings.streams.entry import StreamEntry, encode_content
from tests.support.in_process.service import LAMP, NOW, command, streaming, until
from tests.support.in_process.streamr import (
    KEY,
    OPERATOR,
    Frame,
    Tank,
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

pytestmark = pytest.mark.usefixtures("sites")

THING, POLICY = "things/acme.site:lamp-7", "policies/acme.site:tanks"
TANKS = EntityId(EntityType.POLICY, "acme.site", "tanks")
ALL = {"grant": ["READ", "WRITE"], "revoke": []}


def granting(*permissions: str) -> dict[str, list[str]]:
    return {"grant": list(permissions), "revoke": []}


async def ditto(tank: Tank, payload: bytes) -> int:
    """The status of a command in the Ditto protocol, by the operator."""
    return int((await tank.ask_ditto(payload))["status"])


async def with_lamp(*turns: Any, by: str = "acme:clients") -> Tank:
    """A lamp under the policy of the tanks, whose holder of KEY may read and write all of it, turned so many times.

    `by` is the subject of the clients' source, which may nothing as a rule.
    """
    tank = await Tank.filled(source("in", by))
    resources = {"stream:/": ALL, "thing:/": ALL, "policy:/": ALL}
    assert await ditto(tank, on_policy("modify", "/entries/pump/resources", resources)) == 204
    assert await ditto(tank, command("create", value={"policyId": "acme.site:tanks"})) == 201
    for value in turns:
        await turn(tank, value)
    tank.forget()
    return tank


async def turn(tank: Tank, value: Any) -> None:
    assert await ditto(tank, command("modify", "/attributes/on", value)) in (201, 204)


def event(frame: Frame) -> Event:
    """The event that a broadcast or a unicast tells of."""
    _, stream, partition, timestamp, ttl, offset, previous, content_type, content = frame[3]
    assert content_type == 27
    return twin_event_of(StreamEntry(stream, partition, timestamp, ttl, offset, previous, encode_content(content)))


# --- reading ------------------------------------------------------------------------------------------------------------


async def test_anyone_who_follows_a_thing_is_sent_its_events_as_items_of_a_history() -> None:
    tank = await with_lamp(True)
    assert await tank.asked("a", subscribe(stream=THING)) == [subscribed(THING)]
    await turn(tank, False)
    (frame,) = (await tank.frames("a", 2))[1:]
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
    assert event(frame) == tank.history()[-1]


async def test_anyone_who_follows_a_policy_is_sent_its_events() -> None:
    tank = await with_lamp()
    assert await tank.asked("a", subscribe(stream=POLICY)) == [subscribed(POLICY)]
    assert await ditto(tank, on_policy("modify", "/entries/more", {"subjects": {}, "resources": {}})) == 201
    (frame,) = (await tank.frames("a", 2))[1:]
    assert event(frame) == tank.history(TANKS)[-1]
    assert await tank.asked("a", unsubscribe(stream=POLICY)) == [unsubscribed(POLICY)]
    assert await ditto(tank, on_policy("delete", "/entries/more")) == 204
    await tank.frames("a", 3)


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
    tank = await with_lamp(1, 2, 3, 4)
    frames = await tank.asked("a", resend(stream=THING, **options), len(expected) + 2 if expected else 1)
    assert offsets(frames, 1) == expected
    assert [event(frame) for frame in frames if frame[1] == 1] == [
        found for found in tank.history() if found.revision in expected
    ]
    assert [frame[3][6] for frame in frames if frame[1] == 1] == [each - 1 if each > 1 else None for each in expected]
    place = {"stream": THING, "partition": 0, "sub": "a"}
    assert frames[-1] == [0, 5 if expected else 6, "", place]


async def test_a_resend_from_a_time_starts_with_the_millisecond_that_the_messages_show() -> None:
    """Events have microseconds, messages have milliseconds, cut off."""
    now = [NOW]
    tank = await Tank.filled(source("in", OPERATOR), decider=lambda store: Decider(store, now=lambda: now[0]))
    assert await ditto(tank, command("create", value={"policyId": "acme.site:tanks"})) == 201
    for microseconds in (1_000, 1_999, 2_000, 2_001, 3_500):
        now[0] = NOW.replace(microsecond=microseconds)
        await turn(tank, microseconds)
    start = int(NOW.timestamp() * 1000)
    for wanted, expected in ((1, [2, 3, 4, 5, 6]), (2, [4, 5, 6]), (3, [6]), (4, [])):
        request = resend(str(wanted), None, stream=THING, resend_from_time=start + wanted)
        frames = await tank.asked("a", request, len(expected) + 2 if expected else 1)
        assert offsets(frames, 1) == expected
        assert all(frame[3][3] >= start + wanted for frame in frames if frame[1] == 1)


async def test_the_same_events_come_in_both_protocols_in_the_same_order() -> None:
    """A history and a live tail, of a client of the Ditto protocol and of one of this, byte for byte."""
    tank = await with_lamp(*range(7))
    await tank.asked("a", subscribe(stream=THING))
    for value in ("x", {"deep": [1.50, "ü"]}, None):
        await turn(tank, value)
    live = (await tank.frames("a", 4))[1:]
    frames = await tank.asked("a", resend(stream=THING, resend_all=True), 13)
    again = [frame for frame in frames if frame[1] == 1]
    assert [frame[3] for frame in again[-3:]] == [frame[3] for frame in live]
    number = len(tank.told())
    ditto_source = len(tank.readers) - 1
    tank.deliver(streaming("subscribeForPersistedEvents", {}), source=ditto_source)
    await until(lambda: len(tank.told()) > number)
    key = tank.told()[-1]["value"]["subscriptionId"]
    tank.deliver(streaming("request", {"subscriptionId": key, "demand": 100}), source=ditto_source)
    await until(lambda: len(tank.told()) >= number + 12)
    said = tank.told()[number + 1 :]
    items = [each["value"]["item"] for each in said if each["topic"].endswith("/next")]
    assert [json.loads(frame[3][8]) for frame in again] == [_plain(item) for item in items]


def _plain(item: dict[str, Any]) -> dict[str, Any]:
    """An item of a history without what its message repeats of the subscribe."""
    own = {name: item["headers"][name] for name in ("content-type", "historical-headers") if name in item["headers"]}
    return {**item, "headers": own}


async def test_a_twin_has_one_partition_and_needs_no_definition_of_streams() -> None:
    tank = await with_lamp()
    resources = {"thing:/": granting("READ")}
    path = "/entries/public/resources"
    assert await ditto(tank, on_policy("modify", path, resources)) == 204
    (refused,) = await tank.asked("a", subscribe(stream=THING, partition=1))
    assert error(refused)["error"] == f"Invalid partition 1 for stream {THING}"
    other = Tank(source("in", "acme:clients", payloadMapping=["Streamr"]), beside=tank)
    assert await other.asked("a", subscribe(None, stream=THING)) == [subscribed(THING)]
    (refused,) = await other.asked("a", subscribe(None, stream="commons"))
    assert error(refused)["status"] == 403
    await turn(tank, True)
    assert offsets(await other.frames("a", 3)) == [2]


async def test_who_may_not_read_all_of_a_thing_follows_nothing_of_it() -> None:
    tank = await with_lamp()
    resources = {"thing:/": granting("READ"), "thing:/attributes/pin": {"grant": [], "revoke": ["READ"]}}
    assert await ditto(tank, on_policy("modify", "/entries/pump/resources", resources)) == 204
    words = f"Not authorized to subscribe to stream {THING} and partition 0"
    for stream, key in ((THING, KEY), (POLICY, KEY), (THING, "wrong"), ("things/acme.site:none", KEY)):
        (refused,) = await tank.asked("a", subscribe(key, stream=stream))
        assert error(refused)["error"] == words.replace(THING, stream)
        (refused,) = await tank.asked("a", resend("s", key, stream=stream, resend_all=True))
        assert (error(refused)["status"], error(refused)["sub"]) == (403, "s")
    assert tank.following.followers(LAMP) == 0


# --- commands -----------------------------------------------------------------------------------------------------------


def modify(value: Any, path: str = "/attributes/on", **headers: Any) -> str:
    return command("modify", path, value, **headers).decode()


async def test_a_command_is_published_and_its_event_is_what_followers_see() -> None:
    tank = await with_lamp()
    await tank.asked("a", subscribe(stream=THING))
    tank.say("b", publish(modify(True), stream=THING))
    (frame,) = (await tank.frames("a", 2))[1:]
    assert tank.heard("b") == []
    assert event(frame) == tank.history()[-1]


async def test_success_is_silent_whatever_the_command_asks_for() -> None:
    tank = await with_lamp()
    asking = modify(True, correlation_id="mine", requested_acks=["twin-persisted", "other"], response_required=True)
    tank.say("a", publish(asking, stream=THING), publish(modify(False), stream=THING, ts="soon", pkey=5))
    assert len(await tank.settled(2)) == 2
    assert tank.values() == [True, False]
    await tank.frames("a", 0)


async def test_a_thing_can_be_created_and_a_policy_changed_by_publishing() -> None:
    tank = await with_lamp()
    new = command("create", value={"policyId": "acme.site:tanks"}, name="new").decode()
    entry = on_policy("modify", "/entries/more", {"subjects": {}, "resources": {}}).decode()
    tank.say("a", publish(new, stream="things/acme.site:new"), publish(entry, stream=POLICY))
    await tank.settled(2)
    assert tank.history(EntityId(EntityType.THING, "acme.site", "new"))[0].action == "created"
    assert tank.history(TANKS)[-1].path == "/entries/more"
    await tank.frames("a", 0)


async def test_a_command_that_fails_is_answered_with_its_own_error() -> None:
    tank = await with_lamp()
    refused: list[tuple[str, Any, tuple[int, str]]] = [
        (modify(1), None, (403, "things:attribute.notmodifiable")),
        (command("delete", "/attributes/none").decode(), KEY, (404, "things:attribute.notfound")),
        (command("create", value={}).decode(), KEY, (409, "things:thing.conflict")),
        (modify(True, if_match='"rev:99"'), KEY, (412, "things:precondition.failed")),
    ]
    assert await ditto(tank, on_policy("modify", "/entries/operator/resources", {"policy:/": ALL})) == 204
    before = len(tank.history())
    for content, key, (status, code) in refused:
        (frame,) = await tank.asked("a", publish(content, key, stream=THING), correlation_id="c-1")
        said = error(frame)
        assert (said["status"], said["code"], said["stream"]) == (status, code, THING)
        assert said["error"]
    assert len(tank.history()) == before


async def test_what_is_no_command_on_the_very_twin_is_refused() -> None:
    tank = await with_lamp()
    before = len(tank.history())
    for content in (
        '{"v":1}',
        command("modify", "/attributes/on", 1, name="other").decode(),
        on_policy("delete").decode(),
        streaming("subscribeForPersistedEvents", {}).decode(),
        modify(1).replace("/twin/", "/live/"),
    ):
        (frame,) = await tank.asked("a", publish(content, stream=THING))
        assert error(frame)["error"] == f"Publish request failed: content is not a Ditto command for {THING}"
    assert len(tank.history()) == before
    (frame,) = await tank.asked("a", publish(modify(1), "wrong", stream=THING))
    assert error(frame)["status"] == 401


async def test_case_b12_a_command_that_comes_again_is_carried_out_once() -> None:
    tank = await with_lamp()
    payload = json.dumps(publish(modify(True), stream=THING)).encode()
    for _ in range(2):
        tank.say("a", payload, correlation_id="c-1")
    again = [tank.delivery(payload, "d-1", redelivered=is_again, reply_to="a") for is_again in (False, True)]
    for delivery in again:
        tank.handle(delivery)
    await tank.settled(4)
    assert tank.values() == [True, True]


async def test_a_message_and_a_command_under_the_same_name_are_two() -> None:
    tank = await with_lamp()
    for _ in range(2):
        tank.say("a", publish(), correlation_id="c-1")
        tank.say("a", publish(modify(True), stream=THING), correlation_id="c-1")
    await tank.settled(4)
    assert (tank.values(), tank.stored()) == ([True], ['{"v":1}'])
    await tank.frames("a", 0)


async def test_who_is_known_by_his_transport_speaks_for_his_own_thing_alone() -> None:
    tank = await with_lamp()
    enforcement = {"input": "{{ header:device-id }}", "filters": ["{{ thing:id }}"]}
    own = source("in", OPERATOR, enforcement=enforcement)
    devices = Tank(own, beside=tank)
    devices.say("a", publish(modify(True), stream=THING), device_id="acme.site:lamp-7")
    await until(tank.values)
    assert await devices.asked("a", subscribe(stream=THING), device_id="acme.site:lamp-7") == [subscribed(THING)]
    for request in (publish(modify(False), stream=THING), subscribe(stream=THING), subscribe(stream="tank")):
        (refused,) = await devices.asked("a", request, device_id="acme.site:lamp-8")
        assert error(refused)["code"] == "connectivity:connection.id.enforcement.failed"
    assert tank.values() == [True]


async def test_a_publisher_without_an_address_changes_the_twin_too() -> None:
    tank = await with_lamp()
    tank.say(None, publish(modify(True), stream=THING), publish(modify(1), "wrong", stream=THING))
    await tank.settled(2)
    assert tank.values() == [True]
    assert tank.link.published == []


async def test_the_holder_of_a_key_acts_with_what_his_source_may_too() -> None:
    tank = await with_lamp(by=OPERATOR)
    assert await ditto(tank, on_policy("modify", "/entries/pump/resources", {"stream:/": ALL})) == 204
    tank.say("a", publish(modify(True), stream=THING))
    await until(tank.values)
    assert tank.values() == [True]


# --- lifetimes ----------------------------------------------------------------------------------------------------------


async def test_a_message_says_how_long_it_will_be_there() -> None:
    tank = await with_lamp(True)
    kept = Settings.model_validate({"lake": {"retention": {"default": "forever", "acme.site": "30d"}}}).lake.retention
    frames = FrameCache(StreamSource(tank.store, RetentionTimes(kept, SparkMode.EMBEDDED), lambda: tank.now))
    last = tank.history()[-1]
    assert (frames.source.entry(last).ttl, json.loads(frames.broadcast(last, PLAIN))[3][4]) == (
        30 * 86_400,
        30 * 86_400,
    )
    assert frames.source.entry(last._replace(timestamp="2030-01-14T07:30:00.000000Z")).ttl == 29 * 86_400
    of_stream = last._replace(entity=EntityId(EntityType.STREAM, "", "tank/0"), value=b'"x"')
    assert frames.source.entry(of_stream).ttl == 0
