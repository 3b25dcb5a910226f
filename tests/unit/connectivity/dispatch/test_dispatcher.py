"""Dispatching of deliveries: order, responses, acknowledgement, subscriptions, logs and metrics.

Case numbers are those of the cases for connections.
"""

from __future__ import annotations

from typing import Any

import pytest
from structlog.testing import capture_logs

from connectivity.errors import PublishFailed
from tests.support.in_process.service import (
    OWNER,
    ConnectionHarness,
    command,
    creation,
    document,
    pause,
    source,
    streaming,
    turn,
    until,
)

pytestmark = pytest.mark.usefixtures("sites")


async def subscribed(site: ConnectionHarness) -> str:
    """Subscribe to the lamp and return the subscription's ID."""
    answer = await site.ask(streaming("subscribeForPersistedEvents", {}, correlation_id="sub"))
    return str(answer["value"]["subscriptionId"])


def actions(site: ConnectionHarness) -> list[str]:
    return [answer["topic"].rpartition("/")[2] for answer in site.answers()]


# order


async def test_case_01_a_command_is_answered_with_its_correlation_id() -> None:
    answer = await ConnectionHarness().ask(creation(correlation_id="c-1"))
    assert (answer["status"], answer["headers"]["correlation-id"]) == (201, "c-1")


async def test_each_command_of_a_batch_sees_those_before_it() -> None:
    site = ConnectionHarness()
    read = command("retrieve", "/attributes/on")
    site.deliver(read, creation(), read, turn(True), read, turn(False), read, command("delete"), read)
    await until(lambda: len(site.answers()) == 9)
    assert site.statuses() == [404, 201, 404, 201, 200, 204, 200, 204, 404]
    assert [answer.get("value") for answer in site.answers()][4:7:2] == [True, False]
    assert site.disk.commits == 1


async def test_each_batch_sees_those_before_it_though_they_are_not_durable(site: ConnectionHarness) -> None:
    site.disk.hold()
    site.deliver(turn(True))
    site.deliver(command("retrieve", "/attributes/on"))
    site.disk.release()
    await until(lambda: len(site.answers()) == 2)
    assert site.answers()[1]["value"] is True


async def test_case_10_answers_come_in_the_order_of_the_commands(site: ConnectionHarness) -> None:
    """For a delivery that is written, read, refused or unreadable, in one batch or in several."""
    site.disk.hold()
    site.deliver(turn(1, correlation_id="0"), command("retrieve", correlation_id="1"))
    site.deliver(b"no json", correlation_id="2")
    site.deliver(command("retrieve", name="lamp-8", correlation_id="3"), turn(2, correlation_id="4"))
    site.deliver(command("retrieve", correlation_id="5"))
    await pause()
    assert site.answers() == []
    site.disk.release()
    await until(lambda: len(site.answers()) == 6)
    assert site.correlations() == list("012345")
    assert await site.settled(6) == ["d2", "d3", "d4", "d5", "d6", "d7"]
    assert site.values() == [1, 2]


async def test_case_02_each_source_of_a_connection_answers_for_itself() -> None:
    site = ConnectionHarness(source("a"), source("b", "acme:other", replyTarget={"address": "other"}))
    await site.has_lamp("lamp-7", OWNER, "acme:other")
    site.deliver(turn(1), source=1)
    site.deliver(turn(2), source=0)
    await site.settled(2)
    assert [message.address for message in site.link.published] == ["other", "out"]
    assert site.values() == [1, 2]


# acknowledging deliveries


async def test_nothing_is_answered_or_acknowledged_before_it_is_durable(site: ConnectionHarness) -> None:
    site.disk.hold()
    site.deliver(turn(True))
    await until(lambda: site.disk.commits == 2)
    await pause()
    assert (site.answers(), site.outcomes) == ([], [])
    site.disk.release()
    await site.settled(1)


async def test_a_delivery_is_acknowledged_when_the_broker_has_its_answer(site: ConnectionHarness) -> None:
    site.link.confirms = False
    site.deliver(turn(1), turn(2))
    await until(lambda: len(site.answers()) == 2)
    await pause()
    assert site.outcomes == []
    site.link.confirm(1)
    assert await site.settled(1) == ["d2"]
    site.link.confirm()
    assert await site.settled(2) == ["d2", "d3"]


@pytest.mark.parametrize(
    "payload",
    [
        pytest.param(b"no json", id="unreadable"),
        pytest.param(command("retrieve", name="lamp-8"), id="refused"),
        pytest.param(command("modify", "/foo", 1), id="unknown path"),
    ],
)
async def test_an_error_answer_settles_a_delivery_too(site: ConnectionHarness, payload: bytes) -> None:
    site.link.confirms = False
    site.deliver(payload)
    await until(lambda: len(site.answers()) == 1)
    assert site.answers()[0]["topic"].endswith("/errors")
    assert site.outcomes == []
    site.link.confirm()
    assert await site.settled(1) == ["d2"]


async def test_twin_case_101_a_command_that_requests_neither_response_nor_acknowledgement_is_acknowledged_silently(
    site: ConnectionHarness,
) -> None:
    """Acknowledged immediately after the commit, also if the command is refused or others wait for labels."""
    silent: dict[str, Any] = {"response_required": False, "requested_acks": []}
    site.deliver(turn(True, **silent), turn(True, timeout=0, **silent))
    assert await site.settled(2) == ["d2", "d3"]
    site.deliver(command("modify", "/features/none/properties", {}, **silent))
    await site.settled(3)
    assert (site.answers(), site.values()) == ([], [True, True])
    assert site.dispatcher.waiting_deliveries("site") == 0


async def test_case_41_a_command_without_response_is_acknowledged_once_it_is_durable(site: ConnectionHarness) -> None:
    site.disk.hold()
    site.deliver(turn(True, response_required=False))
    await until(lambda: site.disk.commits == 2)
    assert site.outcomes == []
    site.disk.release()
    await site.settled(1)
    assert (site.answers(), site.values()) == ([], [True])


async def test_a_response_that_the_broker_refuses_is_counted_logged_and_its_delivery_acknowledged(
    site: ConnectionHarness,
) -> None:
    site.link.confirms = False
    site.deliver(turn(True, correlation_id="c-1"))
    await until(lambda: len(site.answers()) == 1)
    with capture_logs() as lines:
        site.link.confirm(error=PublishFailed("not authorized"))
    await site.settled(1)
    assert site.count("out", "failed") == 1
    (line,) = lines
    assert (line["connection"], line["correlation_id"], line["error"]) == ("site", "c-1", "not authorized")


async def test_an_incoming_error_is_acknowledged_without_a_response(site: ConnectionHarness) -> None:
    site.deliver(document("acme.site/lamp-7/things/twin/errors", value={"status": 404}))
    await site.settled(1)
    assert site.answers() == []


# subscriptions


async def test_case_26_subscribe_and_request_bring_created_next_complete(site: ConnectionHarness) -> None:
    key = await subscribed(site)
    site.deliver(streaming("request", {"subscriptionId": key, "demand": 1}, device="d"))
    await until(lambda: actions(site) == ["created", "next", "complete"])
    assert [answer["headers"].get("device") for answer in site.answers()] == [None, "d", "d"]
    assert site.answers()[1]["value"]["item"]["revision"] == 1


async def test_a_subscribe_after_a_modify_in_the_same_batch_includes_its_event(site: ConnectionHarness) -> None:
    site.deliver(turn(True), streaming("subscribeForPersistedEvents", {}))
    await until(lambda: len(site.answers()) == 2)
    (key,) = [answer["value"]["subscriptionId"] for answer in site.answers() if answer["topic"].endswith("created")]
    site.deliver(streaming("request", {"subscriptionId": key, "demand": 5}))
    await until(lambda: "complete" in actions(site))
    assert actions(site).count("next") == 2


async def test_a_redelivered_request_never_doubles_demand(site: ConnectionHarness) -> None:
    site.deliver(*[turn(number) for number in range(5)])
    await site.settled(5)
    site.forget()
    key = await subscribed(site)
    asked = streaming("request", {"subscriptionId": key, "demand": 2})
    site.handle(site.delivery(asked, "r"))
    site.handle(site.delivery(asked, "r", redelivered=True), site.delivery(asked, "r", redelivered=True))
    await site.settled(4)
    await pause()
    assert actions(site) == ["created", "next", "next"]
    assert site.count("in", "answered_again") == 2
    site.handle(site.delivery(asked, "r"))
    await until(lambda: actions(site).count("next") == 4)


async def test_a_request_with_a_key_adds_demand_once(site: ConnectionHarness) -> None:
    site.deliver(*[turn(number) for number in range(5)])
    await site.settled(5)
    site.forget()
    key = await subscribed(site)
    asked = streaming("request", {"subscriptionId": key, "demand": 1}, idempotency_key="k")
    site.deliver(asked, asked)
    await site.settled(3)
    await pause()
    assert actions(site) == ["created", "next"]


async def test_a_redelivered_cancel_is_not_answered(site: ConnectionHarness) -> None:
    key = await subscribed(site)
    cancel = streaming("cancel", {"subscriptionId": key})
    site.handle(site.delivery(cancel, "c"))
    site.clock.advance(100)
    for _ in range(2):
        site.streams.sweep()
    site.handle(site.delivery(cancel, "c", redelivered=True))
    await site.settled(3)
    assert actions(site) == ["created"]


async def test_case_28_a_request_for_an_unknown_subscription_fails_with_404(site: ConnectionHarness) -> None:
    answer = await site.ask(streaming("request", {"subscriptionId": "nobody", "demand": 1}, correlation_id="c-1"))
    assert (answer["value"]["error"]["status"], answer["headers"]["correlation-id"]) == (404, "c-1")


async def test_case_30_elements_go_to_the_source_of_the_latest_request() -> None:
    site = ConnectionHarness(source("a"), source("b", replyTarget={"address": "other"}))
    await site.has_lamp()
    key = await subscribed(site)
    site.deliver(streaming("request", {"subscriptionId": key, "demand": 1}, correlation_id="b"), source=1)
    await until(lambda: "complete" in actions(site))
    assert [message.address for message in site.link.published] == ["out", "other", "other"]
    assert site.correlations() == ["sub", "b", "b"]


async def test_case_31_an_unknown_thing_fails_at_the_first_request(site: ConnectionHarness) -> None:
    created = await site.ask(streaming("subscribeForPersistedEvents", {}, name="lamp-8"))
    assert created["topic"].endswith("/created")
    key = created["value"]["subscriptionId"]
    failed = await site.ask(streaming("request", {"subscriptionId": key, "demand": 1}, name="lamp-8"))
    assert failed["topic"].endswith("/failed")
    assert failed["value"]["error"]["error"] == "things:thing.notfound"


async def test_a_streaming_command_is_acknowledged_when_the_link_has_taken_earlier_messages(
    site: ConnectionHarness,
) -> None:
    site.link.window = 1
    site.link.confirms = False
    site.deliver(command("retrieve"), command("retrieve"))
    await until(lambda: len(site.answers()) == 1)
    site.deliver(streaming("subscribeForPersistedEvents", {}))
    assert site.outcomes == []
    site.link.confirm(1)
    assert site.outcomes == [("d2", site.outcomes[0][1])]
    site.link.confirm(1)
    await until(lambda: len(site.outcomes) == 2)
    site.link.confirm(1)
    assert [name for name, _ in site.outcomes] == ["d2", "d3", "d4"]


async def test_closing_a_connection_removes_its_subscriptions(site: ConnectionHarness) -> None:
    await subscribed(site)
    site.dispatcher.close_connection("site")
    await until(lambda: list(site.streams) == [])


# logs and metrics


async def test_a_refused_command_is_logged_with_connection_and_correlation_id(site: ConnectionHarness) -> None:
    with capture_logs() as lines:
        await site.ask(command("retrieve", name="lamp-8", correlation_id="c-1"))
    (line,) = lines
    assert (line["log_level"], line["event"]) == ("info", "command refused")
    assert (line["connection"], line["source"], line["address"]) == ("site", 0, "in")
    assert (line["correlation_id"], line["entity"]) == ("c-1", "acme.site:lamp-8")
    assert (line["status"], line["error"]) == (404, "things:thing.notfound")


async def test_an_unreadable_delivery_is_logged_with_its_transport_headers(site: ConnectionHarness) -> None:
    with capture_logs() as lines:
        await site.ask(b"no json", correlation_id="c-1")
    (line,) = lines
    assert (line["event"], line["correlation_id"], line["error"]) == ("delivery refused", "c-1", "json.invalid")
    assert "no json" not in str(line)


async def test_the_outcomes_of_deliveries_are_counted(site: ConnectionHarness) -> None:
    settled, published = site.count("in", "settled"), site.count("out", "published")
    site.deliver(turn(1), b"no json", command("retrieve", name="lamp-8"))
    await site.settled(3)
    assert site.count("in", "settled") - settled == 3
    assert site.count("out", "published") - published == 3
    assert (site.count("in", "malformed"), site.count("in", "refused")) == (1, 1)


async def test_responses_with_an_unresolved_address_are_dropped_and_the_delivery_is_acknowledged() -> None:
    site = ConnectionHarness(source(replyTarget={"address": "{{ header:reply-to }}"}))
    site.deliver(creation())
    await site.settled(1)
    assert (site.answers(), len(site.history())) == ([], 1)
    assert site.count("out", "address_unresolved") == 1


async def test_an_unsafe_reply_address_does_not_stop_the_command() -> None:
    site = ConnectionHarness(source(replyTarget={"address": "{{ header:reply-to }}"}))
    with capture_logs() as lines:
        site.deliver(creation(reply_to="$SYS/#", correlation_id="c-1"))
        await site.settled(1)
    assert (site.answers(), len(site.history())) == ([], 1)
    assert [(line["log_level"], line["correlation_id"]) for line in lines] == [("warning", "c-1")]
