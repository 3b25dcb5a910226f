"""Requests of the Streamr protocol at their desk: what cannot be read, whose sessions they are, where they are answered.

Case numbers are those of the cases for Streamr.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from structlog.testing import capture_logs

from tests.support.in_process.service import command, pause
from tests.support.in_process.streamr import (
    Tank,
    error,
    offsets,
    policy,
    publish,
    resend,
    source,
    subscribe,
    subscribed,
    unsubscribe,
    unsubscribed,
)
from tests.support.wait import wait_until

pytestmark = pytest.mark.usefixtures("sites")

CONSTANT = source(replyTarget={"address": "everybody", "headerMapping": {}})


# what cannot be read


@pytest.mark.parametrize("payload", [b"not json", b"null", b"[]", b"7", b"", b"\xff", b'{"type":"subscribe"'])
async def test_case_x01_what_is_no_object_is_refused_and_the_session_continues(payload: bytes) -> None:
    tank = await Tank.filled()
    (refused,) = await tank.asked("a", payload)
    said = error(refused)
    assert (said["error"], said["status"]) == ("Request is not a JSON object", 400)
    assert await tank.asked("a", subscribe()) == [subscribed()]
    assert await tank.settled(2)


async def test_answers_of_a_session_come_in_the_order_of_its_requests_whatever_is_wrong_with_these() -> None:
    tank = await Tank.filled()
    tank.say("a", b"7", subscribe(key="O"), publish(), {"type": "dance"}, subscribe(), b"[]", unsubscribe())
    frames = await tank.frames("a", 6)
    assert [frame[1] for frame in frames] == [7, 7, 7, 2, 7, 3]
    assert [error(frame)["status"] for frame in frames if frame[1] == 7] == [400, 403, 400, 400]


@pytest.mark.parametrize("type", ["dance", "constructor", "__proto__", "toString", None, 7, ["publish"]])
async def test_cases_x02_and_x03_a_type_that_there_is_not_is_refused(type: Any) -> None:
    tank = await Tank.filled()
    (refused,) = await tank.asked("a", {"type": type, "stream": "tank"})
    assert error(refused)["error"].startswith("Unknown request type: ")


@pytest.mark.parametrize("version", [1, 28, "0", True])
async def test_case_x04_a_version_that_is_not_spoken_is_refused(version: Any) -> None:
    tank = await Tank.filled()
    (refused,) = await tank.asked("a", {**subscribe(), "version": version})
    assert error(refused)["error"].startswith("Unsupported version: ")
    assert await tank.asked("a", {**subscribe(), "version": 0}) == [subscribed()]


@pytest.mark.parametrize(
    ("shape", "payload"),
    [("string", "Request is not a JSON object"), ("json-string", '{"error":"Request is not a JSON object"}')],
)
async def test_case_x05_errors_have_the_payload_that_the_definition_names(shape: str, payload: str) -> None:
    tank = await Tank.filled(options={"errorPayload": shape, "subIdFiller": None})
    assert await tank.asked("a", b"7") == [[0, 7, None, payload]]
    (refused,) = await tank.asked("a", unsubscribe())
    assert refused[:3] == [0, 7, None]
    assert "Not subscribed to stream tank partition 0!" in refused[3]


async def test_a_request_that_is_too_large_is_refused_in_the_words_of_the_protocol() -> None:
    tank = await Tank.filled()
    too_large = json.dumps(publish(json.dumps("x" * (1 << 20)))).encode()
    (refused,) = await tank.asked("a", too_large)
    assert (error(refused)["error"], error(refused)["status"]) == ("Request too large", 413)
    assert await tank.asked("a", subscribe()) == [subscribed()]


async def test_case_x06_who_may_not_read_any_longer_is_notified_so_and_sent_no_more() -> None:
    tank = await Tank.filled()
    await tank.asked("a", subscribe())
    await tank.asked("b", subscribe(None, stream="commons"))
    less = policy()
    del less["entries"]["pump"]
    changed = command("modify", value=less, name="tanks").replace(b"things/twin", b"policies")
    assert (await tank.ask_ditto(changed))["status"] == 204
    frames = await tank.frames("a", 2)
    assert error(frames[1])["error"] == "Not authorized to subscribe to stream tank and partition 0"
    tank.say("c", publish(key="W"), publish(key="W", stream="commons"))
    assert offsets(await tank.frames("b", 2)) == [1]
    assert len(await tank.frames("a", 2)) == 2
    assert len(list(tank.streams)) == 1


async def test_a_mistake_of_our_own_costs_one_request_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    tank = await Tank.filled()

    def broken(*_: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(type(tank.handlers.of("streamr")), "_subscribe", broken)
    (refused,) = await tank.asked("a", subscribe())
    assert error(refused)["status"] == 500
    assert await tank.settled(1)
    tank.say("a", publish())
    await tank.settled(2)
    assert len(tank.stored()) == 1


# where answers go


async def test_case_b01_each_address_gets_its_own_frames() -> None:
    tank = await Tank.filled()
    assert await tank.asked("r/a", subscribe()) == [subscribed()]
    assert await tank.asked("r/b", subscribe()) == [subscribed()]
    await tank.asked("r/a", unsubscribe())
    await tank.publish(1)
    assert offsets(await tank.frames("r/b", 2)) == [1]
    assert offsets(tank.heard("r/a")) == []


async def test_case_b02_who_shares_an_address_is_sent_everything_once() -> None:
    tank = await Tank.filled(CONSTANT)
    tank.say(None, subscribe(), client_id="one")
    tank.say(None, subscribe(), client_id="two")
    assert await tank.frames("everybody", 2) == [subscribed(), subscribed()]
    await tank.publish(1)
    assert offsets(await tank.frames("everybody", 3)) == [1]
    tank.say(None, unsubscribe(), client_id="one")
    assert (await tank.frames("everybody", 4))[3] == unsubscribed()
    await tank.publish(1)
    assert offsets(await tank.frames("everybody", 5)) == [1, 2]
    tank.say(None, unsubscribe(), client_id="two")
    await tank.frames("everybody", 6)
    await tank.publish(1)
    await tank.frames("everybody", 6)


@pytest.mark.parametrize("request_", [subscribe(), unsubscribe(), resend(resend_all=True), {"type": "disconnect"}])
async def test_case_b04_what_cannot_be_answered_is_dropped(request_: dict[str, Any]) -> None:
    tank = await Tank.filled(messages=1)
    with capture_logs() as logs:
        tank.say(None, request_)
        await tank.settled(1)
    assert [log["event"] for log in logs] == ["a request cannot be answered"]
    assert (tank.link.published, list(tank.streams)) == ([], [])


@pytest.mark.parametrize(
    "address",
    ["other/a/res", "streamr/a/b/res", "streamr//res", "streamr/+/res", "$SYS/x", "streamr/a/res\n", ""],
)
@pytest.mark.parametrize("request_", [subscribe(), publish(), b"not json"], ids=["subscribe", "publish", "unreadable"])
async def test_case_b05_nothing_is_sent_where_nothing_is_meant_to_go(
    address: str, request_: dict[str, Any] | bytes
) -> None:
    tank = await Tank.filled(options={"replyAddressPattern": "streamr/*/res"})
    tank.say(address, request_)
    await tank.settled(1)
    await pause()
    assert (tank.link.published, list(tank.streams), tank.stored()) == ([], [], [])
    assert await tank.asked("streamr/a/res", subscribe()) == [subscribed()]


async def test_case_b05_without_a_pattern_the_beginning_of_the_reply_target_counts() -> None:
    target = {"address": "streamr/{{ header:reply-to }}"}
    tank = await Tank.filled(source(replyTarget=target))
    tank.say("a", subscribe())
    assert await tank.frames("streamr/a", 1) == [subscribed()]


async def test_case_b05_an_address_that_is_longer_than_any_is_none() -> None:
    tank = await Tank.filled()
    tank.say("a" * 1025, subscribe())
    await tank.settled(1)
    assert (tank.link.published, list(tank.streams)) == ([], [])


async def test_case_b06_a_session_is_not_for_others_to_use() -> None:
    tank = await Tank.filled(source("in", "acme:x"), source("in2", "acme:y"))
    assert await tank.asked("r/x", subscribe()) == [subscribed()]
    for request_ in (subscribe(), unsubscribe(), resend(resend_all=True), publish()):
        (refused,) = await tank.asked("r/x", request_, source=1)
        assert error(refused)["status"] == 403
    assert await tank.asked("r/x", {"type": "disconnect"}, 0, source=1) == []
    assert tank.stored() == []
    assert offsets(await tank.asked("r/x", publish())) == [1]
    assert await tank.asked("r/y", subscribe(), source=1) == [subscribed()]


async def test_case_b07_a_disconnect_ends_everything_without_a_frame() -> None:
    tank = await Tank.filled(messages=3)
    await tank.asked("a", subscribe())
    tank.link.confirms = False
    tank.say("a", resend(resend_all=True), {"type": "disconnect"})
    await tank.settled(3)
    await pause()
    await wait_until(lambda: list(tank.streams) == [])
    tank.link.confirms = True
    tank.link.confirm()
    await tank.publish(1)
    assert await tank.frames("a", 1) == [subscribed()]
    assert await tank.asked("a", subscribe()) == [subscribed()]
    assert offsets(await tank.asked("a", publish())) == [5]


async def test_case_b13_a_redelivered_subscribe_is_answered_again_and_follows_once() -> None:
    tank = await Tank.filled()
    payload = json.dumps(subscribe()).encode()
    for redelivered in (False, True):
        tank.handle(tank.delivery(payload, "d-1", redelivered=redelivered, reply_to="a"))
        await pause()
    assert await tank.frames("a", 2) == [subscribed(), subscribed()]
    assert offsets(await tank.asked("a", publish())) == [1]


async def test_a_closed_connection_has_no_sessions() -> None:
    tank = await Tank.filled()
    await tank.asked("a", subscribe())
    tank.dispatcher.close_connection("site")
    await wait_until(lambda: list(tank.streams) == [])
    await tank.publish(1)
    await tank.frames("a", 1)


# headers


async def test_frames_carry_the_headers_of_what_they_answer_and_broadcasts_none_of_it() -> None:
    tank = await Tank.filled(messages=1)
    tank.say("a", subscribe(), correlation_id="c-1")
    tank.say("a", resend(resend_all=True), correlation_id="c-2")
    tank.say("a", b"7", correlation_id="c-3")
    tank.say("a", publish(), correlation_id="c-4")
    await tank.frames("a", 6)
    headers = [dict(message.envelope.headers) for message in tank.link.published]
    assert {each.pop("content-type") for each in headers} == {"application/json"}
    assert {each.pop("streamr-session") for each in headers} == {"a"}
    assert sorted((each["streamr-type"], each.get("correlation-id")) for each in headers) == [
        ("0", None),
        ("1", "c-2"),
        ("2", "c-1"),
        ("4", "c-2"),
        ("5", "c-2"),
        ("7", "c-3"),
    ]


async def test_a_reply_target_may_map_headers_of_its_own() -> None:
    target = {
        "address": "{{ header:reply-to }}",
        "headerMapping": {"correlation-id": "{{ header:correlation-id }}", "device": "{{ header:device }}"},
    }
    tank = await Tank.filled(source(replyTarget=target, headerMapping={"device": "{{ header:x-device }}-1"}))
    tank.say("a", subscribe(), publish(), correlation_id="c-1", x_device="d")
    await tank.frames("a", 2)
    first, second = (message.envelope.headers for message in tank.link.published)
    assert (first["device"], first["correlation-id"]) == ("d-1", "c-1")
    assert second["device"] == "d-1"
    assert "correlation-id" not in second


async def test_a_mapped_header_has_priority_than_that_of_the_transport() -> None:
    tank = await Tank.filled(source(headerMapping={"reply-to": "clients/{{ header:client }}"}))
    tank.say("elsewhere", subscribe(), client="7")
    assert await tank.frames("clients/7", 1) == [subscribed()]
    assert tank.heard("elsewhere") == []
