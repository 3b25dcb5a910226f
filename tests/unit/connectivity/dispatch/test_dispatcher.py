"""Dispatching of deliveries: order, responses, acknowledgement, subscriptions, logs and metrics.

Case numbers are those of the cases for connections.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from connectivity.errors import PublishFailed
from connectivity.sources.delivery import DeliveryLedger, InboundDelivery, read
from mappings.model.signals import Command
from spark_store.errors import StoreUnavailable
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

pytestmark = pytest.mark.usefixtures("harnesses")


async def subscribed(harness: ConnectionHarness) -> str:
    """Subscribe to the lamp and return the subscription's ID."""
    answer = await harness.ask(streaming("subscribeForPersistedEvents", {}, correlation_id="sub"))
    return str(answer["value"]["subscriptionId"])


def actions(harness: ConnectionHarness) -> list[str]:
    return [answer["topic"].rpartition("/")[2] for answer in harness.answers()]


# order


async def test_case_01_a_command_is_answered_with_its_correlation_id() -> None:
    answer = await ConnectionHarness().ask(creation(correlation_id="c-1"))
    assert (answer["status"], answer["headers"]["correlation-id"]) == (201, "c-1")


async def test_an_error_about_an_entity_tag_has_the_present_one_in_its_header() -> None:
    harness = ConnectionHarness()
    harness.deliver(creation(), turn(True))
    await until(lambda: len(harness.answers()) == 2)
    read = await harness.ask(command("retrieve", "/attributes/on"))
    tag = read["headers"]["etag"]
    for asked, status in (
        (command("retrieve", "/attributes/on", if_none_match="*"), 304),
        (turn(False, if_match='"other"'), 412),
        (command("delete", if_match='"rev:7"'), 412),
    ):
        answer = await harness.ask(asked)
        assert answer["status"] == status
        assert answer["headers"]["etag"] == (tag if status == 304 or "on" in asked.decode() else '"rev:2"')
    assert "etag" not in (await harness.ask(command("retrieve", "/attributes/none")))["headers"]


@pytest.mark.parametrize("letter", ["x", "й", "𝄞"])
async def test_a_client_can_use_the_whole_size_of_headers(letter: str) -> None:
    """The originator that the service adds does not count, and commands are measured as subscriptions are."""
    harness = ConnectionHarness()
    await harness.has_lamp()
    units = len(letter.encode("utf-16-le")) // 2
    full, rest = divmod(5120 - len("correlation-idc-1note"), units)
    for note, status in ((letter * full + "x" * rest, 200), (letter * full + "x" * (rest + 1), 431)):
        answer = await harness.ask(command("retrieve", correlation_id="c-1", note=note))
        assert answer["status"] == status
        subscribe = streaming("subscribeForPersistedEvents", {}, correlation_id="c-1", note=note)
        assert (await harness.ask(subscribe)).get("status", 200) == status


async def test_messages_of_a_subscription_do_not_repeat_the_schema_version(harness: ConnectionHarness) -> None:
    """Clients of Ditto send `version` with every command; only responses and events of twins have it."""
    versioned: dict[str, Any] = {"version": 2, "note": "x"}
    created = await harness.ask(streaming("subscribeForPersistedEvents", {}, **versioned))
    key = created["value"]["subscriptionId"]
    request = streaming("request", {"subscriptionId": key, "demand": 5}, **versioned)
    harness.deliver(request)
    await until(lambda: len(harness.answers()) == 3)
    harness.deliver(request)
    await until(lambda: len(harness.answers()) == 4)
    assert actions(harness) == ["created", "next", "complete", "failed"]
    item = harness.answers()[1]["value"]["item"]
    for message in (*harness.answers(), item):
        assert "version" not in message["headers"]
        assert message["headers"]["note"] == "x"


async def test_permissions_are_checked_of_several_entities() -> None:
    harness = ConnectionHarness()
    await harness.ask(creation())
    check = {"resource": "thing:/", "entityId": "acme.site:lamp-7", "hasPermissions": ["READ", "WRITE"]}
    topic = "_/_/policies/commands/checkPermissions"
    answer = await harness.ask(document(topic, value={"mine": check, "none": {**check, "entityId": "acme:x"}}))
    assert (answer["topic"], answer["path"], answer["status"]) == (topic, "/", 200)
    assert answer["value"] == {"mine": True, "none": False}
    answer = await harness.ask(document(topic, value={"no": {}}, correlation_id="c-9"))
    assert (answer["topic"], answer["status"]) == ("_/_/policies/errors", 400)
    assert (answer["value"]["error"], answer["headers"]["correlation-id"]) == ("json.field.missing", "c-9")


async def test_an_action_changes_several_entries_of_a_policy_at_once() -> None:
    harness = ConnectionHarness()
    resources = {
        key: {"grant": grant, "revoke": []}
        for key, grant in (("thing:/", ["READ"]), ("policy:/", ["READ", "WRITE", "EXECUTE"]))
    }
    entry = {"subjects": {OWNER: {"type": "test"}}, "resources": resources}
    topic = "acme.site/shared/policies/commands/create"
    value = {"policyId": "acme.site:shared", "entries": {"A": entry, "B": entry}}
    assert (await harness.ask(document(topic, value=value)))["status"] == 201
    answer = await harness.ask(document(topic, "/actions/activateTokenIntegration"))
    assert (answer["topic"], answer["status"], answer["headers"]["entity-revision"]) == (topic, 204, 3)
    answer = await harness.ask(document("acme.site/shared/policies/commands/retrieve", "/entries/B/subjects"))
    assert list(answer["value"]) == [OWNER, f"integration:B:{OWNER}"]


async def test_each_command_of_a_batch_sees_those_before_it() -> None:
    harness = ConnectionHarness()
    read = command("retrieve", "/attributes/on")
    harness.deliver(read, creation(), read, turn(True), read, turn(False), read, command("delete"), read)
    await until(lambda: len(harness.answers()) == 9)
    assert harness.statuses() == [404, 201, 404, 201, 200, 204, 200, 204, 404]
    assert [answer.get("value") for answer in harness.answers()][4:7:2] == [True, False]
    assert harness.disk.commits == 1


async def test_each_batch_sees_earlier_ones_that_are_not_durable(harness: ConnectionHarness) -> None:
    harness.disk.hold()
    harness.deliver(turn(True))
    harness.deliver(command("retrieve", "/attributes/on"))
    harness.disk.release()
    await until(lambda: len(harness.answers()) == 2)
    assert harness.answers()[1]["value"] is True


async def test_b1_deliveries_processed_one_by_one_wait_behind_one_that_is_handed_back(
    harness: ConnectionHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of them could not be stored before; now the store cannot be read for the first."""
    decide = harness.dispatcher._handlers[Command]
    handled: list[Any] = []

    def handle(signal: Command, *arguments: Any) -> Any:
        handled.append(signal.value)
        if len(handled) == 1:
            raise StoreUnavailable("a page cannot be read")
        return decide.handle(signal, *arguments)

    monkeypatch.setitem(harness.dispatcher._handlers, Command, SimpleNamespace(has_side_effects=False, handle=handle))
    batch = read(
        harness.readers[0], [harness.delivery(turn(number), str(number)) for number in range(3)], DeliveryLedger()
    )
    batch[1].tries = 1
    handed_back: list[InboundDelivery] = []
    with capture_logs():
        harness.dispatcher.handle(batch, handed_back.extend)
    assert (handed_back, handled) == (batch, [b"0"])


async def test_case_10_answers_come_in_the_order_of_the_commands(harness: ConnectionHarness) -> None:
    """For a delivery that is written, read, refused or unreadable, in one batch or in several."""
    harness.disk.hold()
    harness.deliver(turn(1, correlation_id="0"), command("retrieve", correlation_id="1"))
    harness.deliver(b"no json", correlation_id="2")
    harness.deliver(command("retrieve", name="lamp-8", correlation_id="3"), turn(2, correlation_id="4"))
    harness.deliver(command("retrieve", correlation_id="5"))
    await pause()
    assert harness.answers() == []
    harness.disk.release()
    await until(lambda: len(harness.answers()) == 6)
    assert harness.correlations() == list("012345")
    assert await harness.settled(6) == ["d2", "d3", "d4", "d5", "d6", "d7"]
    assert harness.values() == [1, 2]


async def test_case_02_each_source_of_a_connection_answers_for_itself() -> None:
    harness = ConnectionHarness(source("a"), source("b", "acme:other", replyTarget={"address": "other"}))
    await harness.has_lamp("lamp-7", OWNER, "acme:other")
    harness.deliver(turn(1), source=1)
    harness.deliver(turn(2), source=0)
    await harness.settled(2)
    assert [message.address for message in harness.link.published] == ["other", "out"]
    assert harness.values() == [1, 2]


# acknowledging deliveries


async def test_nothing_is_answered_or_acknowledged_before_it_is_durable(harness: ConnectionHarness) -> None:
    harness.disk.hold()
    harness.deliver(turn(True))
    await until(lambda: harness.disk.commits == 2)
    await pause()
    assert (harness.answers(), harness.outcomes) == ([], [])
    harness.disk.release()
    await harness.settled(1)


async def test_a_delivery_is_acknowledged_when_the_broker_has_its_answer(harness: ConnectionHarness) -> None:
    harness.link.confirms = False
    harness.deliver(turn(1), turn(2))
    await until(lambda: len(harness.answers()) == 2)
    await pause()
    assert harness.outcomes == []
    harness.link.confirm(1)
    assert await harness.settled(1) == ["d2"]
    harness.link.confirm()
    assert await harness.settled(2) == ["d2", "d3"]


@pytest.mark.parametrize(
    "payload",
    [
        pytest.param(b"no json", id="unreadable"),
        pytest.param(command("retrieve", name="lamp-8"), id="refused"),
        pytest.param(command("modify", "/foo", 1), id="unknown path"),
    ],
)
async def test_an_error_answer_settles_a_delivery_too(harness: ConnectionHarness, payload: bytes) -> None:
    harness.link.confirms = False
    harness.deliver(payload)
    await until(lambda: len(harness.answers()) == 1)
    assert harness.answers()[0]["topic"].endswith("/errors")
    assert harness.outcomes == []
    harness.link.confirm()
    assert await harness.settled(1) == ["d2"]


async def test_twin_case_101_a_command_that_requests_neither_response_nor_acknowledgement_is_acknowledged_silently(
    harness: ConnectionHarness,
) -> None:
    """Acknowledged immediately after the commit, also if the command is refused or others wait for labels."""
    silent: dict[str, Any] = {"response_required": False, "requested_acks": []}
    harness.deliver(turn(True, **silent), turn(True, timeout=0, **silent))
    assert await harness.settled(2) == ["d2", "d3"]
    harness.deliver(command("modify", "/features/none/properties", {}, **silent))
    await harness.settled(3)
    assert (harness.answers(), harness.values()) == ([], [True, True])
    assert harness.waiting_deliveries() == 0


async def test_case_41_a_command_without_response_is_acknowledged_once_it_is_durable(
    harness: ConnectionHarness,
) -> None:
    harness.disk.hold()
    harness.deliver(turn(True, response_required=False))
    await until(lambda: harness.disk.commits == 2)
    assert harness.outcomes == []
    harness.disk.release()
    await harness.settled(1)
    assert (harness.answers(), harness.values()) == ([], [True])


async def test_a_response_that_the_broker_refuses_is_counted_logged_and_its_delivery_acknowledged(
    harness: ConnectionHarness,
) -> None:
    harness.link.confirms = False
    harness.deliver(turn(True, correlation_id="c-1"))
    await until(lambda: len(harness.answers()) == 1)
    with capture_logs() as lines:
        harness.link.confirm(error=PublishFailed("not authorized"))
    await harness.settled(1)
    assert harness.count("out", "failed") == 1
    (line,) = lines
    assert (line["connection"], line["correlation_id"], line["error"]) == ("site", "c-1", "not authorized")


async def test_an_incoming_error_is_acknowledged_without_a_response(harness: ConnectionHarness) -> None:
    harness.deliver(document("acme.site/lamp-7/things/twin/errors", value={"status": 404}))
    await harness.settled(1)
    assert harness.answers() == []


# subscriptions


async def test_case_26_subscribe_and_request_bring_created_next_complete(harness: ConnectionHarness) -> None:
    key = await subscribed(harness)
    harness.deliver(streaming("request", {"subscriptionId": key, "demand": 1}, device="d"))
    await until(lambda: actions(harness) == ["created", "next", "complete"])
    assert [answer["headers"].get("device") for answer in harness.answers()] == [None, "d", "d"]
    assert harness.answers()[1]["value"]["item"]["revision"] == 1


async def test_a_subscribe_after_a_modify_in_the_same_batch_includes_its_event(harness: ConnectionHarness) -> None:
    harness.deliver(turn(True), streaming("subscribeForPersistedEvents", {}))
    await until(lambda: len(harness.answers()) == 2)
    (key,) = [answer["value"]["subscriptionId"] for answer in harness.answers() if answer["topic"].endswith("created")]
    harness.deliver(streaming("request", {"subscriptionId": key, "demand": 5}))
    await until(lambda: "complete" in actions(harness))
    assert actions(harness).count("next") == 2


async def test_the_id_alone_identifies_a_subscription_whatever_thing_the_topic_names(
    harness: ConnectionHarness,
) -> None:
    key = (await harness.ask(streaming("subscribeForPersistedEvents", {})))["value"]["subscriptionId"]
    harness.deliver(streaming("request", {"subscriptionId": key, "demand": 5}, name="lamp-8"))
    await until(lambda: len(harness.answers()) == 3)
    assert [answer["topic"] for answer in harness.answers()[1:]] == [
        "acme.site/lamp-7/things/twin/streaming/next",
        "acme.site/lamp-7/things/twin/streaming/complete",
    ]


async def test_a_redelivered_request_never_doubles_demand(harness: ConnectionHarness) -> None:
    harness.deliver(*[turn(number) for number in range(5)])
    await harness.settled(5)
    harness.forget()
    key = await subscribed(harness)
    asked = streaming("request", {"subscriptionId": key, "demand": 2})
    harness.handle(harness.delivery(asked, "r"))
    harness.handle(harness.delivery(asked, "r", redelivered=True), harness.delivery(asked, "r", redelivered=True))
    await harness.settled(4)
    await pause()
    assert actions(harness) == ["created", "next", "next"]
    assert harness.count("in", "answered_again") == 2
    harness.handle(harness.delivery(asked, "r"))
    await until(lambda: actions(harness).count("next") == 4)


async def test_a_request_with_a_key_adds_demand_once(harness: ConnectionHarness) -> None:
    harness.deliver(*[turn(number) for number in range(5)])
    await harness.settled(5)
    harness.forget()
    key = await subscribed(harness)
    asked = streaming("request", {"subscriptionId": key, "demand": 1}, idempotency_key="k")
    harness.deliver(asked, asked)
    await harness.settled(3)
    await pause()
    assert actions(harness) == ["created", "next"]


async def test_a_redelivered_cancel_is_not_answered(harness: ConnectionHarness) -> None:
    key = await subscribed(harness)
    cancel = streaming("cancel", {"subscriptionId": key})
    harness.handle(harness.delivery(cancel, "c"))
    harness.clock.advance(100)
    for _ in range(2):
        harness.streams.sweep()
    harness.handle(harness.delivery(cancel, "c", redelivered=True))
    await harness.settled(3)
    assert actions(harness) == ["created"]


async def test_case_28_a_request_for_an_unknown_subscription_fails_with_404(harness: ConnectionHarness) -> None:
    answer = await harness.ask(streaming("request", {"subscriptionId": "nobody", "demand": 1}, correlation_id="c-1"))
    assert (answer["value"]["error"]["status"], answer["headers"]["correlation-id"]) == (404, "c-1")


async def test_case_30_elements_go_to_the_source_of_the_latest_request() -> None:
    harness = ConnectionHarness(source("a"), source("b", replyTarget={"address": "other"}))
    await harness.has_lamp()
    key = await subscribed(harness)
    harness.deliver(streaming("request", {"subscriptionId": key, "demand": 1}, correlation_id="b"), source=1)
    await until(lambda: "complete" in actions(harness))
    assert [message.address for message in harness.link.published] == ["out", "other", "other"]
    assert harness.correlations() == ["sub", "b", "b"]


async def test_case_31_an_unknown_thing_fails_at_the_first_request(harness: ConnectionHarness) -> None:
    created = await harness.ask(streaming("subscribeForPersistedEvents", {}, name="lamp-8"))
    assert created["topic"].endswith("/created")
    key = created["value"]["subscriptionId"]
    failed = await harness.ask(streaming("request", {"subscriptionId": key, "demand": 1}, name="lamp-8"))
    assert failed["topic"].endswith("/failed")
    assert failed["value"]["error"]["error"] == "things:thing.notfound"


async def test_a_streaming_command_is_acknowledged_when_the_link_has_taken_earlier_messages(
    harness: ConnectionHarness,
) -> None:
    harness.link.window = 1
    harness.link.confirms = False
    harness.deliver(command("retrieve"), command("retrieve"))
    await until(lambda: len(harness.answers()) == 1)
    harness.deliver(streaming("subscribeForPersistedEvents", {}))
    assert harness.outcomes == []
    harness.link.confirm(1)
    assert harness.outcomes == [("d2", harness.outcomes[0][1])]
    harness.link.confirm(1)
    await until(lambda: len(harness.outcomes) == 2)
    harness.link.confirm(1)
    assert [name for name, _ in harness.outcomes] == ["d2", "d3", "d4"]


async def test_closing_a_connection_removes_its_subscriptions(harness: ConnectionHarness) -> None:
    await subscribed(harness)
    harness.close_connection()
    await until(lambda: list(harness.streams) == [])


# logs and metrics


async def test_a_refused_command_is_logged_with_connection_and_correlation_id(harness: ConnectionHarness) -> None:
    with capture_logs() as lines:
        await harness.ask(command("retrieve", name="lamp-8", correlation_id="c-1"))
    (line,) = lines
    assert (line["log_level"], line["event"]) == ("info", "command refused")
    assert (line["connection"], line["source"], line["address"]) == ("site", 0, "in")
    assert (line["correlation_id"], line["entity"]) == ("c-1", "acme.site:lamp-8")
    assert (line["status"], line["error"]) == (404, "things:thing.notfound")


async def test_an_unreadable_delivery_is_logged_with_its_transport_headers(harness: ConnectionHarness) -> None:
    with capture_logs() as lines:
        await harness.ask(b"no json", correlation_id="c-1")
    (line,) = lines
    assert (line["event"], line["correlation_id"], line["error"]) == ("delivery refused", "c-1", "json.invalid")
    assert "no json" not in str(line)


async def test_the_outcomes_of_deliveries_are_counted(harness: ConnectionHarness) -> None:
    settled, published = harness.count("in", "settled"), harness.count("out", "published")
    harness.deliver(turn(1), b"no json", command("retrieve", name="lamp-8"))
    await harness.settled(3)
    assert harness.count("in", "settled") - settled == 3
    assert harness.count("out", "published") - published == 3
    assert (harness.count("in", "malformed"), harness.count("in", "refused")) == (1, 1)


async def test_a_delivery_that_enforcement_refuses_is_counted_as_refused() -> None:
    harness = ConnectionHarness(source(enforcement={"input": "{{ header:device }}", "filters": ["{{ thing:name }}"]}))
    harness.deliver(command("retrieve"), device="lamp-8")
    await harness.settled(1)
    assert harness.answers()[0]["value"]["error"] == "connectivity:connection.id.enforcement.failed"
    assert (harness.count("in", "malformed"), harness.count("in", "refused")) == (0, 1)


async def test_responses_with_an_unresolved_address_are_dropped_and_the_delivery_is_acknowledged() -> None:
    harness = ConnectionHarness(source(replyTarget={"address": "{{ header:reply-to }}"}))
    harness.deliver(creation())
    await harness.settled(1)
    assert (harness.answers(), len(harness.history())) == ([], 1)
    assert harness.count("out", "address_unresolved") == 1


async def test_an_unsafe_reply_address_does_not_stop_the_command() -> None:
    harness = ConnectionHarness(source(replyTarget={"address": "{{ header:reply-to }}"}))
    with capture_logs() as lines:
        harness.deliver(creation(reply_to="$SYS/#", correlation_id="c-1"))
        await harness.settled(1)
    assert (harness.answers(), len(harness.history())) == ([], 1)
    assert [(line["log_level"], line["correlation_id"]) for line in lines] == [("warning", "c-1")]
