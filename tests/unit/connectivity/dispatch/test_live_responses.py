"""Responses of devices: the requester gets the parts that are readable in the twin, at its own address."""

from __future__ import annotations

import gc
import json
import tracemalloc
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from tests.support.in_process.service import ConnectionHarness, command, creation, document, source, target, until
from tests.support.in_process.two_connections import (
    COMMANDS,
    MESSAGES,
    NACKS,
    SEEN,
    acknowledgement,
    collected,
    live,
    message,
    other_connection,
    with_status,
)

pytestmark = pytest.mark.usefixtures("harnesses")

GUEST = "acme:guest"
STATE = {
    "thingId": "acme.site:lamp-7",
    "policyId": "acme.site:lamp-7",
    "attributes": {"on": True, "code": 4711},
    "features": {"vault": {"properties": {"open": False}}},
}


async def asked_by_guest(*readable: str) -> tuple[ConnectionHarness, ConnectionHarness]:
    """A service whose guest can read some resources of the lamp, and the connection of the device."""
    harness = await collected(source(**NACKS), source("guest", GUEST, **NACKS))
    entry = {
        "subjects": {GUEST: {"type": "test"}},
        "resources": {f"thing:{path}": {"grant": ["READ"], "revoke": []} for path in readable},
    }
    let_in = document("acme.site/lamp-7/policies/commands/modify", "/entries/GUEST", entry)
    assert (await harness.ask(let_in))["status"] == 201
    assert (await harness.ask(command("modify", "/attributes/on", True)))["status"] == 201
    harness.forget()
    return harness, other_connection(harness, target(COMMANDS))


@pytest.mark.parametrize(
    ("path", "value", "seen"),
    [
        ("/", STATE, {"thingId": "acme.site:lamp-7", "attributes": {"on": True}}),
        ("/attributes", STATE["attributes"], {"on": True}),
        ("/attributes/on", True, True),
    ],
)
@pytest.mark.parametrize("way", ["a live command", "a condition", "requested acknowledgements"])
async def test_a_device_answers_a_retrieve_with_what_the_requester_can_read(
    way: str, path: str, value: Any, seen: Any
) -> None:
    harness, device = await asked_by_guest("/attributes/on")
    headers: dict[str, Any] = {"correlation_id": "c-1"}
    if way == "a condition":
        harness.deliver(command("retrieve", path, live_channel_condition="exists(attributes/on)", **headers), source=1)
    else:
        labels = ["live-response", "nobody:there"] if way == "requested acknowledgements" else ["live-response"]
        harness.deliver(live("retrieve", path, requested_acks=labels, timeout="2s", **headers), source=1)
    await until(lambda: device.answers())
    device.deliver(with_status(live("retrieve", path, value), 200))
    if way == "requested acknowledgements":
        harness.clock.advance(3)
        harness.request_reply.pending.expire()
    await until(lambda: harness.answers())
    (answer,) = harness.answers()
    if way == "requested acknowledgements":
        answer = {"status": 200, "value": answer["value"]["live-response"]["payload"]}
    assert (answer["status"], answer["value"]) == (200, seen)


@pytest.mark.parametrize("value", [{"code": 4711}, {}, "all", None])
async def test_a_device_that_answers_nothing_readable_has_found_nothing(value: Any) -> None:
    harness, device = await asked_by_guest("/attributes/on")
    harness.deliver(live("retrieve", "/attributes"), source=1)
    await until(lambda: device.answers())
    device.deliver(with_status(live("retrieve", "/attributes", value), 200))
    await until(lambda: harness.answers())
    (answer,) = harness.answers()
    assert (answer["status"], answer["value"]["error"]) == (404, "things:attributes.notfound")


@pytest.mark.parametrize("path", ["/", "/attributes/code", "/attributes/ä"])
async def test_a_device_cannot_show_more_at_another_path(path: str) -> None:
    harness, device = await asked_by_guest("/attributes/on")
    harness.deliver(live("retrieve", "/attributes/on"), source=1)
    await until(lambda: device.answers())
    device.deliver(with_status(live("retrieve", path, {"code": 4711}), 200))
    await until(lambda: harness.answers())
    (answer,) = harness.answers()
    assert answer["status"] in (400, 404)
    assert "4711" not in str(answer)


async def test_a_device_error_reaches_every_permitted_requester() -> None:
    harness, device = await asked_by_guest("/attributes/on")
    harness.deliver(live("retrieve", "/attributes"), source=1)
    await until(lambda: device.answers())
    device.deliver(with_status(live("retrieve", "/attributes", {"error": "asleep"}), 503))
    await until(lambda: harness.answers())
    (answer,) = harness.answers()
    assert (answer["status"], answer["value"]) == (503, {"error": "asleep"})


@pytest.mark.parametrize(
    "asked", [{"answer_to": "ours"}, {"Answer_To": "ours"}, {}], ids=["same", "upper case", "none"]
)
@pytest.mark.parametrize("is_diverted", [False, True])
async def test_a_responder_does_not_choose_the_address_of_its_response(
    asked: dict[str, str], is_diverted: bool
) -> None:
    address = {"address": "{{ header:answer-to }}"}
    diversion: dict[str, Any] = {"headerMapping": {"divert-response-to-connection": "desk"}} if is_diverted else {}
    harness = ConnectionHarness(
        source(replyTarget={"address": "out"} if is_diverted else address, **diversion),
        source(),
        specificConfig={"is-diversion-source": "true"},
    )
    await harness.ask(creation(), source=1)
    harness.forget()
    options = {"is-diversion-target": "true", "authorized-connections-as-sources": "site"}
    desk = ConnectionHarness(beside=harness, id="desk", specificConfig=options, targets=[target(**address)])
    other = other_connection(harness, target(MESSAGES))
    harness.deliver(message(**asked))
    theirs = {"answer_to": "theirs", "diverted_response_from_connection": "theirs"}
    other.deliver(with_status(message(more="x", **theirs), 200))
    await harness.settled(1)
    published = (desk if is_diverted else harness).link.published
    assert [each.address for each in published] == list(asked.values())
    assert all(b'"more":"x"' in each.envelope.payload for each in published)


async def test_an_acknowledgement_does_not_show_the_reply_address_of_its_sender() -> None:
    harness = await collected()
    other = other_connection(harness, target(MESSAGES))
    harness.deliver(message(requested_acks=["live-response", SEEN]))
    other.deliver(with_status(message(reply_to="peer-1", more="x"), 200))
    other.deliver(acknowledgement(channel="live", reply_to="peer-1", more="y"))
    await harness.settled(1)
    (answer,) = harness.answers()
    assert b"peer-1" not in harness.link.published[0].envelope.payload
    assert [ack["headers"]["more"] for ack in answer["value"].values()] == ["x", "y"]


CONTENT = "x" * 100_000


def live_retrieve(**headers: Any) -> bytes:
    return json.dumps({**json.loads(live("retrieve", **headers)), "fields": f"attributes/{CONTENT}"}).encode()


@pytest.mark.parametrize(
    ("source_index", "is_changing", "sent"),
    [
        pytest.param(0, False, partial(live, "modify", "/attributes/on", CONTENT), id="a value"),
        pytest.param(0, False, partial(message, value=CONTENT), id="a message"),
        pytest.param(0, False, live_retrieve, id="selected fields"),
        pytest.param(0, True, partial(message, value="short"), id="a thing that changes"),
        pytest.param(1, False, partial(message, value=CONTENT), id="two signals in a delivery"),
    ],
)
async def test_a_signal_that_waits_for_a_response_without_its_delivery_keeps_no_content(
    source_index: int, *, is_changing: bool, sent: Callable[..., bytes]
) -> None:
    """Its delivery is settled, so that no limit on unsettled bytes includes it."""
    count = 20
    harness = ConnectionHarness(
        source(**NACKS),
        source("twice", payloadMapping=["Ditto", "again"], **NACKS),
        mappingDefinitions={"again": {"mappingEngine": "Ditto", "options": {}}},
    )
    await harness.has_lamp()
    device = other_connection(harness, target(MESSAGES, COMMANDS))
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for number in range(count):
            if is_changing:
                await harness.ask(command("modify", "/attributes/text", CONTENT[: 90_000 + number]))
            content = sent(correlation_id=f"c-{number}", requested_acks=[], timeout="9s")
            harness.deliver(content, source=source_index)
        await until(lambda: len(device.answers()) == count)
        for each in (device, harness):
            each.forget()
            each.link.confirm()
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(harness.request_reply.pending) == count
    assert after - before < len(CONTENT) * count / 4
    device.deliver(with_status(sent(correlation_id="c-7"), 204))
    await until(lambda: harness.answers())
    assert harness.answers()[0]["headers"]["correlation-id"] == "c-7"


async def test_a_message_that_was_requeued_without_a_response_is_sent_again() -> None:
    harness = await collected()
    other = other_connection(harness, target(MESSAGES))
    harness.deliver(message(timeout="2s"))
    harness.clock.advance(2)
    harness.request_reply.pending.expire()
    harness.handle(harness.delivery(message(timeout="2s"), "d2", redelivered=True))
    assert [sent["headers"]["correlation-id"] for sent in other.answers()] == ["c-1", "c-1"]
