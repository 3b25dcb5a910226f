"""Requests of the Streamr protocol in the session handler: invalid ones, sessions and reply addresses.

Case numbers are those of the cases for Streamr.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from structlog.testing import capture_logs

from tests.support.in_process.service import command, pause
from tests.support.in_process.streamr import (
    StreamrHarness,
    error,
    offsets,
    on_policy,
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

pytestmark = pytest.mark.usefixtures("harnesses")

CONSTANT = source(replyTarget={"address": "everybody", "headerMapping": {}})


# what cannot be read


@pytest.mark.parametrize("payload", [b"not json", b"null", b"[]", b"7", b"", b"\xff", b'{"type":"subscribe"'])
async def test_case_x01_a_payload_that_is_not_an_object_is_refused_and_the_session_continues(payload: bytes) -> None:
    streamr_harness = await StreamrHarness.filled()
    (refused,) = await streamr_harness.exchange("a", payload)
    response = error(refused)
    assert (response["error"], response["status"]) == ("Request is not a JSON object", 400)
    assert await streamr_harness.exchange("a", subscribe()) == [subscribed()]
    assert await streamr_harness.settled(2)


async def test_responses_of_a_session_keep_the_order_of_its_requests_even_for_invalid_requests() -> None:
    streamr_harness = await StreamrHarness.filled()
    streamr_harness.send("a", b"7", subscribe(key="O"), publish(), {"type": "dance"}, subscribe(), b"[]", unsubscribe())
    frames = await streamr_harness.frames("a", 6)
    assert [frame[1] for frame in frames] == [7, 7, 7, 2, 7, 3]
    assert [error(frame)["status"] for frame in frames if frame[1] == 7] == [400, 403, 400, 400]


@pytest.mark.parametrize("type", ["dance", "constructor", "__proto__", "toString", None, 7, ["publish"]])
async def test_cases_x02_and_x03_an_unknown_type_is_refused(type: Any) -> None:
    streamr_harness = await StreamrHarness.filled()
    (refused,) = await streamr_harness.exchange("a", {"type": type, "stream": "tank"})
    assert error(refused)["error"].startswith("Unknown request type: ")


@pytest.mark.parametrize("version", [1, 28, "0", True])
async def test_case_x04_an_unsupported_version_is_refused(version: Any) -> None:
    streamr_harness = await StreamrHarness.filled()
    (refused,) = await streamr_harness.exchange("a", {**subscribe(), "version": version})
    assert error(refused)["error"].startswith("Unsupported version: ")
    assert await streamr_harness.exchange("a", {**subscribe(), "version": 0}) == [subscribed()]


@pytest.mark.parametrize(
    ("shape", "payload"),
    [("string", "Request is not a JSON object"), ("json-string", '{"error":"Request is not a JSON object"}')],
)
async def test_case_x05_errors_have_the_payload_that_the_definition_names(shape: str, payload: str) -> None:
    streamr_harness = await StreamrHarness.filled(options={"errorPayload": shape, "subIdFiller": None})
    assert await streamr_harness.exchange("a", b"7") == [[0, 7, None, payload]]
    (refused,) = await streamr_harness.exchange("a", unsubscribe())
    assert refused[:3] == [0, 7, None]
    assert "Not subscribed to stream tank partition 0!" in refused[3]


async def test_a_request_that_is_too_large_is_refused_in_the_format_of_the_protocol() -> None:
    streamr_harness = await StreamrHarness.filled()
    too_large = json.dumps(publish(json.dumps("x" * (1 << 20)))).encode()
    (refused,) = await streamr_harness.exchange("a", too_large)
    assert (error(refused)["error"], error(refused)["status"]) == ("Request too large", 413)
    assert await streamr_harness.exchange("a", subscribe()) == [subscribed()]


async def test_case_x06_a_subscriber_that_loses_read_permission_gets_an_error_and_no_more_messages() -> None:
    streamr_harness = await StreamrHarness.filled()
    await streamr_harness.exchange("a", subscribe())
    await streamr_harness.exchange("b", subscribe(None, stream="commons"))
    less = policy()
    del less["entries"]["pump"]
    changed = command("modify", value=less, name="tanks").replace(b"things/twin", b"policies")
    assert (await streamr_harness.ask_ditto(changed))["status"] == 204
    frames = await streamr_harness.frames("a", 2)
    assert error(frames[1])["error"] == "Not authorized to subscribe to stream tank and partition 0"
    streamr_harness.send("c", publish(key="W"), publish(key="W", stream="commons"))
    assert offsets(await streamr_harness.frames("b", 2)) == [1]
    assert len(await streamr_harness.frames("a", 2)) == 2
    assert len(list(streamr_harness.streams)) == 1


async def test_an_internal_error_fails_one_request_only(monkeypatch: pytest.MonkeyPatch) -> None:
    streamr_harness = await StreamrHarness.filled()

    def broken(*_: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(type(streamr_harness.handlers["streamr"]), "_subscribe", broken)
    (refused,) = await streamr_harness.exchange("a", subscribe())
    assert error(refused)["status"] == 500
    assert await streamr_harness.settled(1)
    streamr_harness.send("a", publish())
    await streamr_harness.settled(2)
    assert len(streamr_harness.stored()) == 1


# where answers go


async def test_case_b01_each_address_gets_its_own_frames() -> None:
    streamr_harness = await StreamrHarness.filled()
    assert await streamr_harness.exchange("r/a", subscribe()) == [subscribed()]
    assert await streamr_harness.exchange("r/b", subscribe()) == [subscribed()]
    await streamr_harness.exchange("r/a", unsubscribe())
    await streamr_harness.publish(1)
    assert offsets(await streamr_harness.frames("r/b", 2)) == [1]
    assert offsets(streamr_harness.received("r/a")) == []


async def test_case_b02_clients_that_share_an_address_are_sent_each_message_once() -> None:
    streamr_harness = await StreamrHarness.filled(CONSTANT)
    streamr_harness.send(None, subscribe(), client_id="one")
    streamr_harness.send(None, subscribe(), client_id="two")
    assert await streamr_harness.frames("everybody", 2) == [subscribed(), subscribed()]
    await streamr_harness.publish(1)
    assert offsets(await streamr_harness.frames("everybody", 3)) == [1]
    streamr_harness.send(None, unsubscribe(), client_id="one")
    assert (await streamr_harness.frames("everybody", 4))[3] == unsubscribed()
    await streamr_harness.publish(1)
    assert offsets(await streamr_harness.frames("everybody", 5)) == [1, 2]
    streamr_harness.send(None, unsubscribe(), client_id="two")
    await streamr_harness.frames("everybody", 6)
    await streamr_harness.publish(1)
    await streamr_harness.frames("everybody", 6)


@pytest.mark.parametrize("request_", [subscribe(), unsubscribe(), resend(resend_all=True), {"type": "disconnect"}])
async def test_case_b04_a_request_without_a_reply_address_is_dropped(request_: dict[str, Any]) -> None:
    streamr_harness = await StreamrHarness.filled(messages=1)
    with capture_logs() as logs:
        streamr_harness.send(None, request_)
        await streamr_harness.settled(1)
    assert [log["event"] for log in logs] == ["request has no reply address"]
    assert (streamr_harness.link.published, list(streamr_harness.streams)) == ([], [])


@pytest.mark.parametrize(
    "address",
    ["other/a/res", "streamr/a/b/res", "streamr//res", "streamr/+/res", "$SYS/x", "streamr/a/res\n", ""],
)
@pytest.mark.parametrize("request_", [subscribe(), publish(), b"not json"], ids=["subscribe", "publish", "unreadable"])
async def test_case_b05_nothing_is_sent_where_nothing_is_meant_to_go(
    address: str, request_: dict[str, Any] | bytes
) -> None:
    streamr_harness = await StreamrHarness.filled(options={"replyAddressPattern": "streamr/*/res"})
    streamr_harness.send(address, request_)
    await streamr_harness.settled(1)
    await pause()
    assert (streamr_harness.link.published, list(streamr_harness.streams), streamr_harness.stored()) == ([], [], [])
    assert await streamr_harness.exchange("streamr/a/res", subscribe()) == [subscribed()]


async def test_case_b05_without_a_pattern_replies_use_the_prefix_of_the_reply_target() -> None:
    target = {"address": "streamr/{{ header:reply-to }}"}
    streamr_harness = await StreamrHarness.filled(source(replyTarget=target))
    streamr_harness.send("a", subscribe())
    assert await streamr_harness.frames("streamr/a", 1) == [subscribed()]


async def test_case_b05_an_address_that_is_too_long_is_not_used() -> None:
    streamr_harness = await StreamrHarness.filled()
    streamr_harness.send("a" * 1025, subscribe())
    await streamr_harness.settled(1)
    assert (streamr_harness.link.published, list(streamr_harness.streams)) == ([], [])


async def test_case_b06_a_session_is_not_for_others_to_use() -> None:
    streamr_harness = await StreamrHarness.filled(source("in", "acme:x"), source("in2", "acme:y"))
    assert await streamr_harness.exchange("r/x", subscribe()) == [subscribed()]
    for request_ in (subscribe(), unsubscribe(), resend(resend_all=True), publish()):
        (refused,) = await streamr_harness.exchange("r/x", request_, source=1)
        assert error(refused)["status"] == 403
    assert await streamr_harness.exchange("r/x", {"type": "disconnect"}, 0, source=1) == []
    assert streamr_harness.stored() == []
    assert offsets(await streamr_harness.exchange("r/x", publish())) == [1]
    assert await streamr_harness.exchange("r/y", subscribe(), source=1) == [subscribed()]


async def test_case_b07_a_disconnect_ends_everything_without_a_frame() -> None:
    streamr_harness = await StreamrHarness.filled(messages=3)
    await streamr_harness.exchange("a", subscribe())
    streamr_harness.link.confirms = False
    streamr_harness.send("a", resend(resend_all=True), {"type": "disconnect"})
    await streamr_harness.settled(3)
    await pause()
    await wait_until(lambda: list(streamr_harness.streams) == [])
    streamr_harness.link.confirms = True
    streamr_harness.link.confirm()
    await streamr_harness.publish(1)
    assert await streamr_harness.frames("a", 1) == [subscribed()]
    assert await streamr_harness.exchange("a", subscribe()) == [subscribed()]
    assert offsets(await streamr_harness.exchange("a", publish())) == [5]


async def test_case_b13_a_redelivered_subscribe_is_answered_again_and_follows_once() -> None:
    streamr_harness = await StreamrHarness.filled()
    payload = json.dumps(subscribe()).encode()
    for redelivered in (False, True):
        streamr_harness.handle(streamr_harness.delivery(payload, "d-1", redelivered=redelivered, reply_to="a"))
        await pause()
    assert await streamr_harness.frames("a", 2) == [subscribed(), subscribed()]
    assert offsets(await streamr_harness.exchange("a", publish())) == [1]


async def test_a_closed_connection_has_no_sessions() -> None:
    streamr_harness = await StreamrHarness.filled()
    await streamr_harness.exchange("a", subscribe())
    streamr_harness.close_connection()
    await wait_until(lambda: list(streamr_harness.streams) == [])
    await streamr_harness.publish(1)
    await streamr_harness.frames("a", 1)


# headers


async def test_responses_carry_the_headers_of_their_request_and_broadcasts_do_not() -> None:
    streamr_harness = await StreamrHarness.filled(messages=1)
    streamr_harness.send("a", subscribe(), correlation_id="c-1")
    streamr_harness.send("a", resend(resend_all=True), correlation_id="c-2")
    streamr_harness.send("a", b"7", correlation_id="c-3")
    streamr_harness.send("a", publish(), correlation_id="c-4")
    await streamr_harness.frames("a", 6)
    headers = [dict(message.envelope.headers) for message in streamr_harness.link.published]
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


async def test_case_x06_the_error_of_a_lost_subscription_carries_no_other_requests_correlation_id() -> None:
    target = {"address": "{{ header:reply-to }}", "headerMapping": {"correlation-id": "{{ header:correlation-id }}"}}
    mores: list[dict[str, Any]] = [{}, {"replyTarget": target}]
    for more in mores:
        streamr_harness = await StreamrHarness.filled(source(**more), messages=1)
        streamr_harness.send("a", subscribe(), correlation_id="c-1")
        streamr_harness.send("a", resend(resend_last=1), correlation_id="c-2")
        await streamr_harness.frames("a", 4)
        await streamr_harness.ask_ditto(on_policy("delete", "/entries/pump"))
        await streamr_harness.frames("a", 5)
        last = [each.envelope.headers for each in streamr_harness.link.published if each.address == "a"][-1]
        assert last["streamr-type"] == "7"
        assert last["streamr-session"] == "a"
        assert "correlation-id" not in last


async def test_a_reply_target_may_map_headers_of_its_own() -> None:
    target = {
        "address": "{{ header:reply-to }}",
        "headerMapping": {"correlation-id": "{{ header:correlation-id }}", "device": "{{ header:device }}"},
    }
    streamr_harness = await StreamrHarness.filled(
        source(replyTarget=target, headerMapping={"device": "{{ header:x-device }}-1"})
    )
    streamr_harness.send("a", subscribe(), publish(), correlation_id="c-1", x_device="d")
    await streamr_harness.frames("a", 2)
    first, second = (message.envelope.headers for message in streamr_harness.link.published)
    assert (first["device"], first["correlation-id"]) == ("d-1", "c-1")
    assert second["device"] == "d-1"
    assert "correlation-id" not in second


async def test_a_mapped_header_has_priority_over_that_of_the_transport() -> None:
    streamr_harness = await StreamrHarness.filled(source(headerMapping={"reply-to": "clients/{{ header:client }}"}))
    streamr_harness.send("elsewhere", subscribe(), client="7")
    assert await streamr_harness.frames("clients/7", 1) == [subscribed()]
    assert streamr_harness.received("elsewhere") == []
