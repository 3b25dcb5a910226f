"""Streaming subscriptions over a real Mosquitto: what a client sees on the wire.

Case numbers are those of the cases for streaming subscriptions. Cases about time alone (idle, after-life) and about order
inside the engine are in tests/unit/connectivity/subscriptions/test_manager.py, where the clock can be moved.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.brokers.mosquitto import Mosquitto
from tests.support.clients.mqtt import MqttClient
from tests.support.connection_documents import READ, Reader, client, connection, policy_for, source, topic
from tests.support.service_process import ServiceProcess

pytestmark = pytest.mark.broker("mosquitto")

WRITER, READER, STRANGER = "acme:writer", "acme:reader", "acme:stranger"


@pytest.fixture(scope="module")
def service(mosquitto: Mosquitto, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    harness = connection(
        mosquitto,
        source("s/writer", WRITER),
        source("s/reader", READER),
        source("s/stranger", STRANGER),
        source("s/second", READER),
    )
    other = connection(mosquitto, source("s/other", READER), id="other")
    with ServiceProcess.start(
        tmp_path_factory.mktemp("streaming"),
        [harness, other],
        journal={"historical_headers": ["ditto-originator"]},
    ) as running:
        yield running


@pytest.fixture(scope="module")
def clients(service: ServiceProcess, mosquitto: Mosquitto) -> Iterator[dict[str, MqttClient]]:
    made = {name: client(mosquitto, f"s/{name}") for name in ("writer", "reader", "stranger", "second", "other")}
    yield made
    for requester in made.values():
        requester.close()


@pytest.fixture(scope="module")
def writer(clients: dict[str, MqttClient]) -> MqttClient:
    return clients["writer"]


@pytest.fixture
def reader(clients: dict[str, MqttClient]) -> MqttClient:
    requester = clients["reader"]
    requester.assert_nothing_came()
    return requester


def make(writer: MqttClient, name: str, *, readable: dict[str, Any] | None = None, **thing: Any) -> None:
    """Create a thing that the reader may read, wholly by default."""
    policy = policy_for(WRITER, acme_reader={"thing:/": READ} if readable is None else readable)
    answer = writer.ask_for(topic(name, "commands/create"), value={"_policy": policy, **thing})
    assert answer["status"] == 201, answer


def write(writer: MqttClient, name: str, path: str, value: Any, verb: str = "modify", **headers: Any) -> None:
    answer = writer.ask_for(topic(name, f"commands/{verb}"), path, value, headers=headers)
    assert answer["status"] in (201, 204), answer


@pytest.fixture(scope="module")
def lamp(writer: MqttClient) -> str:
    """A thing with revisions 1 (created, counter 0) to 101 (counter 100)."""
    name = f"lamp-{secrets.token_hex(3)}"
    make(writer, name, attributes={"counter": 0})
    sent = [writer.command(topic(name, "commands/modify"), "/attributes/counter", value) for value in range(1, 101)]
    answers = [writer.next() for _ in sent]
    assert [answer["headers"]["correlation-id"] for answer in answers] == sent
    assert {answer["status"] for answer in answers} == {204}
    return name


def revisions(items: list[dict[str, Any]]) -> list[int]:
    return [item["revision"] for item in items]


def test_case_01_the_whole_history_of_a_thing(reader: MqttClient, lamp: str) -> None:
    items = Reader(reader, lamp, {}).all(101)
    assert revisions(items) == list(range(1, 102))
    assert items[0]["topic"] == topic(lamp, "events/created")
    assert {item["topic"] for item in items[1:]} == {topic(lamp, "events/modified")}
    assert {item["path"] for item in items[1:]} == {"/attributes/counter"}
    assert all(item["value"] == item["revision"] - 1 for item in items[1:])


def test_case_02_a_subscribe_needs_no_value(reader: MqttClient, lamp: str) -> None:
    assert len(Reader(reader, lamp).all()) == 101


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        pytest.param({"fromHistoricalRevision": 0}, range(1, 102), id="case_03_from_zero"),
        pytest.param({"fromHistoricalRevision": -1}, range(101, 102), id="case_09_from_minus_one"),
        pytest.param({"fromHistoricalRevision": -50}, range(52, 102), id="case_10_from_minus_fifty"),
        pytest.param({"toHistoricalRevision": 0}, range(1, 102), id="case_11_to_zero"),
        pytest.param({"toHistoricalRevision": -1}, range(1, 101), id="case_11_to_minus_one"),
        pytest.param(
            {"fromHistoricalRevision": -10, "toHistoricalRevision": -5}, range(92, 97), id="case_11_both_relative"
        ),
        pytest.param({"fromHistoricalRevision": 9, "toHistoricalRevision": 5}, range(0), id="case_12_from_above_to"),
        pytest.param({"fromHistoricalRevision": 500}, range(0), id="case_13_from_beyond_the_newest"),
        pytest.param({"fromHistoricalRevision": -500}, range(1, 102), id="case_14_more_than_there_are"),
        pytest.param({"fromHistoricalRevision": 101.0}, range(101, 102), id="case_16_a_whole_number_however_spelt"),
        pytest.param({"fromHistoricalRevision": None}, range(1, 102), id="case_18_null_is_absent"),
        pytest.param({"prefix": "x", "whatever": [1]}, range(1, 102), id="case_19_unknown_keys_are_ignored"),
        pytest.param({"filter": "ge(attributes/counter,50)"}, range(51, 102), id="case_04_filter"),
        pytest.param({"filter": "lt(_modified,time:now)"}, range(1, 102), id="case_48_time_in_a_filter"),
    ],
)
def test_the_range_that_is_asked_for(reader: MqttClient, lamp: str, value: dict[str, Any], expected: range) -> None:
    """Cases 3, 4, 9 to 14, 16, 18, 19, 48: bounds absolute and relative, and filters."""
    assert revisions(Reader(reader, lamp, value).all()) == list(expected)


def test_case_05_a_filter_inside_a_range(writer: MqttClient, reader: MqttClient) -> None:
    make(writer, "lamp-2", attributes={"counter": 0})
    for value in range(2, 20, 2):
        write(writer, "lamp-2", "/attributes/counter", value)
    asked = {"fromHistoricalRevision": 5, "toHistoricalRevision": 9, "filter": "ne(attributes/counter,12)"}
    assert [item["value"] for item in Reader(reader, "lamp-2", asked).all(10)] == [8, 10, 14, 16]


def test_case_06_07_08_15_bounds_in_time_are_exclusive(reader: MqttClient, lamp: str) -> None:
    stamps = {item["revision"]: item["timestamp"] for item in Reader(reader, lamp).all()}
    after = Reader(reader, lamp, {"fromHistoricalTimestamp": stamps[5]}).all()
    before = Reader(reader, lamp, {"toHistoricalTimestamp": stamps[5]}).all()
    assert after[0]["revision"] > 5
    assert stamps[after[0]["revision"]] > stamps[5]
    assert before[-1]["timestamp"] < stamps[5]
    both = {"fromHistoricalTimestamp": stamps[6], "toHistoricalTimestamp": stamps[90], "toHistoricalRevision": 60}
    assert revisions(Reader(reader, lamp, both).all()) == [
        revision for revision, stamp in stamps.items() if stamps[6] < stamp < stamps[90] and revision <= 60
    ]
    whole = {"fromHistoricalTimestamp": "2000-01-01T00:00:00Z", "toHistoricalTimestamp": "2999-01-01T00:00:00+02:00"}
    assert len(Reader(reader, lamp, whole).all()) == 101


@pytest.mark.parametrize(
    ("value", "error"),
    [
        pytest.param({"fromHistoricalRevision": 1.5}, "json.format.invalid", id="case_16_no_whole_number"),
        pytest.param({"fromHistoricalRevision": "1"}, "json.invalid", id="case_16_text"),
        pytest.param({"fromHistoricalTimestamp": "2024-05-01"}, "json.invalid", id="case_17_date_only"),
        pytest.param({"fromHistoricalTimestamp": 7}, "json.invalid", id="case_17_number"),
        pytest.param({"filter": 7}, "json.invalid", id="filter_is_a_number"),
        pytest.param([1], "json.format.invalid", id="value_is_an_array"),
    ],
)
def test_case_16_17_a_malformed_subscribe_is_an_error_and_no_subscription(
    reader: MqttClient, lamp: str, value: Any, error: str
) -> None:
    answer = reader.ask_for(topic(lamp, "streaming/subscribeForPersistedEvents"), value=value)
    assert answer["topic"] == topic(lamp, "errors")
    assert (answer["status"], answer["value"]["error"]) == (400, error)


def test_case_21_historical_headers_name_the_writer_and_headers_the_reader(reader: MqttClient, lamp: str) -> None:
    (item,) = Reader(reader, lamp, {"fromHistoricalRevision": -1}, headers={"trace": "t-1"}).all()
    assert item["headers"]["historical-headers"] == {"ditto-originator": WRITER}
    assert item["headers"]["ditto-originator"] == READER
    assert item["headers"]["trace"] == "t-1"
    assert item["headers"]["entity-revision"] == 101


def test_case_22_23_44_deletions_and_merges_in_a_history(writer: MqttClient, reader: MqttClient) -> None:
    """Deleted: no value, no content type. Merged: nulls, and its own content type.

    Revisions continue after a deletion.
    """
    name = "lamp-3"
    make(writer, name, attributes={"a": 1, "b": 2})
    write(writer, name, "/attributes/a", None, "delete")
    merge = {"content-type": "application/merge-patch+json"}
    write(writer, name, "/attributes", {"b": None, "c": 3}, "merge", **merge)
    write(writer, name, "/", None, "delete")
    write(writer, name, "/", {"policyId": f"acme.site:{name}"}, "create")
    created, deleted, merged, gone, again = Reader(reader, name).all()
    assert created["revision"] == 1
    assert (deleted["topic"], deleted["path"]) == (topic(name, "events/deleted"), "/attributes/a")
    assert "value" not in deleted
    assert "content-type" not in deleted["headers"]
    assert (merged["topic"], merged["value"]) == (topic(name, "events/merged"), {"b": None, "c": 3})
    assert merged["headers"]["content-type"] == "application/merge-patch+json"
    assert (gone["path"], gone["revision"]) == ("/", 4)
    assert (again["topic"], again["revision"]) == (topic(name, "events/created"), 5)


def test_case_24_41_the_history_of_a_policy(writer: MqttClient, reader: MqttClient) -> None:
    """Policies have no channel in their topics; READ on all of one is needed."""
    policy = policy_for(WRITER, acme_reader={"policy:/": READ})
    answer = writer.ask_for(
        topic("pol-7", "commands/create", "policies"), value={"policyId": "acme.site:pol-7", **policy}
    )
    assert answer["status"] == 201, answer
    subscription = Reader(reader, "pol-7", group="policies")
    assert subscription.created["topic"] == topic("pol-7", "streaming/created", "policies")
    (item,) = subscription.all()
    assert item["topic"] == topic("pol-7", "events/created", "policies")


@pytest.mark.parametrize("channel", ["twin", "none"])
def test_case_25_a_policy_topic_with_a_channel_is_unknown(reader: MqttClient, channel: str) -> None:
    answer = reader.ask_for(f"acme.site/pol-7/policies/{channel}/streaming/subscribeForPersistedEvents")
    assert answer["value"]["error"] == "protocoladapter:unknown.topicpath"


def test_case_26_a_subscription_without_channel_is_answered_on_twin_and_live_is_refused(
    reader: MqttClient, lamp: str
) -> None:
    subscription = Reader(reader, lamp, group="things/none")
    assert subscription.created["topic"] == topic(lamp, "streaming/created")
    answer = reader.ask_for(topic(lamp, "streaming/subscribeForPersistedEvents", "things/live"))
    assert answer["value"]["error"] == "protocoladapter:unknown.topicpath"


def test_case_27_subscribe_request_next_complete(writer: MqttClient, reader: MqttClient) -> None:
    make(writer, "lamp-4")
    (item,) = Reader(reader, "lamp-4").all(1)
    assert (item["revision"], item["topic"]) == (1, topic("lamp-4", "events/created"))


def test_case_29_two_requests_in_a_row_add_up(reader: MqttClient, lamp: str) -> None:
    subscription = Reader(reader, lamp)
    subscription.request(2)
    last = subscription.request(3)
    events = [reader.next() for _ in range(5)]
    assert [event["value"]["item"]["revision"] for event in events] == [1, 2, 3, 4, 5]
    assert events[-1]["headers"]["correlation-id"] == last
    subscription.cancel()


def test_case_33_34_demand_as_numbers_are_spelt(reader: MqttClient, lamp: str) -> None:
    """2.0 means 2 and 1e2 means 100; other values than whole numbers of 64 bits are harmless errors."""
    subscription = Reader(reader, lamp)
    request = topic(lamp, "streaming/request")
    for demand, error in ((b"9223372036854775808", "json.invalid"), (b"1.5", "json.format.invalid")):
        value = b'{"subscriptionId":"%s","demand":%s}' % (subscription.id.encode(), demand)
        reader.send(b'{"topic":"%s","path":"/","value":%s}' % (request.encode(), value))
        assert reader.next()["value"]["error"] == error
    subscription.request("2")
    assert reader.next()["value"]["error"] == "json.invalid"
    subscription.request(2.0)
    assert [reader.next()["value"]["item"]["revision"] for _ in range(2)] == [1, 2]
    reader.send(
        b'{"topic":"%s","path":"/","value":{"subscriptionId":"%s","demand":1e2}}'
        % (request.encode(), subscription.id.encode())
    )
    assert len(reader.until("complete")) == 100


def test_case_36_a_filtered_event_uses_no_demand(reader: MqttClient, lamp: str) -> None:
    subscription = Reader(reader, lamp, {"filter": "gt(attributes/counter,90)"})
    subscription.request(10)
    *events, last = reader.until("complete")
    assert [event["value"]["item"]["value"] for event in events] == list(range(91, 101))
    assert last["topic"].endswith("/complete")


@pytest.mark.parametrize("name", ["unreadable", "never-there"])
def test_case_38_39_an_unreadable_thing_looks_like_a_missing_one(
    writer: MqttClient, reader: MqttClient, name: str
) -> None:
    if name == "unreadable":
        make(writer, name, readable={})
    subscription = Reader(reader, name)
    correlation = subscription.request(1)
    failed = reader.next()
    assert failed["topic"] == topic(name, "streaming/failed")
    assert failed["headers"]["correlation-id"] == correlation
    error = failed["value"]["error"]
    assert (error["status"], error["error"]) == (404, "things:thing.notfound")
    assert error["message"].replace(name, "X") == (
        "The Thing with ID 'acme.site:X' could not be found or requester had insufficient permissions to access it."
    )


def test_case_40_read_with_a_part_revoked_is_not_enough(writer: MqttClient, reader: MqttClient) -> None:
    revoked = {"grant": [], "revoke": ["READ"]}
    make(writer, "lamp-5", readable={"thing:/": READ, "thing:/features/secret": revoked})
    Reader(reader, "lamp-5").request(1)
    assert reader.next()["value"]["error"]["status"] == 404


def test_case_42_43_the_history_of_a_deleted_thing_keeps_its_readers(writer: MqttClient, reader: MqttClient) -> None:
    make(writer, "lamp-6")
    write(writer, "lamp-6", "/", None, "delete")
    assert revisions(Reader(reader, "lamp-6").all()) == [1, 2]
    answer = writer.ask_for(topic("lamp-6", "commands/delete", "policies"))
    assert answer["status"] == 204, answer
    assert revisions(Reader(reader, "lamp-6").all()) == [1, 2]


def test_a_stranger_who_creates_a_deleted_thing_again_sees_only_their_own_part(
    clients: dict[str, MqttClient], writer: MqttClient, reader: MqttClient
) -> None:
    stranger = clients["stranger"]
    make(writer, "lamp-7")
    write(writer, "lamp-7", "/", None, "delete")
    answer = writer.ask_for(topic("lamp-7", "commands/delete", "policies"))
    assert answer["status"] == 204, answer
    theirs = {"policyId": "acme.site:lamp-7", **policy_for(STRANGER)}
    answer = stranger.ask_for(topic("lamp-7", "commands/create", "policies"), value=theirs)
    assert answer["status"] == 201, answer
    Reader(stranger, "lamp-7").request(1)
    assert stranger.next()["value"]["error"]["error"] == "things:thing.notfound"
    answer = stranger.ask_for(topic("lamp-7", "commands/create"), value={"policyId": "acme.site:lamp-7"})
    assert answer["status"] == 201, answer
    assert revisions(Reader(stranger, "lamp-7").all()) == [3]
    past = stranger.ask_for(topic("lamp-7", "commands/retrieve"), headers={"at-historical-revision": 1})
    assert (past["status"], past["value"]["error"]) == (404, "things:thing.history.notfound")
    assert revisions(Reader(reader, "lamp-7").all()) == [1, 2]


def test_case_45_permission_is_checked_at_the_subscribe(writer: MqttClient, reader: MqttClient) -> None:
    make(writer, "lamp-8")
    subscription = Reader(reader, "lamp-8")
    answer = writer.ask_for(topic("lamp-8", "commands/modify", "policies"), value=policy_for(WRITER))
    assert answer["status"] == 204, answer
    assert revisions(subscription.all()) == [1]
    Reader(reader, "lamp-8").request(1)
    assert reader.next()["value"]["error"]["status"] == 404


@pytest.mark.parametrize("filter", ["eq(", "", 'eq(topic:action,"modified")'])
def test_case_46_47_an_unreadable_filter_fails_at_the_first_request(reader: MqttClient, lamp: str, filter: str) -> None:
    Reader(reader, lamp, {"filter": filter}).request(1)
    error = reader.next()["value"]["error"]
    assert (error["status"], error["error"]) == (400, "rql.expression.invalid")


def test_case_49_ne_matches_events_that_do_not_carry_the_field(writer: MqttClient, reader: MqttClient) -> None:
    make(writer, "lamp-9", attributes={"x": 1})
    write(writer, "lamp-9", "/attributes/y", 2)
    write(writer, "lamp-9", "/attributes/x", 1)
    write(writer, "lamp-9", "/attributes/x", None, "delete")
    assert revisions(Reader(reader, "lamp-9", {"filter": "ne(attributes/x,1)"}).all()) == [2, 4]


def test_case_50_a_demand_of_zero_fails_and_ends_the_subscription(reader: MqttClient, lamp: str) -> None:
    subscription = Reader(reader, lamp)
    subscription.request(0)
    error = reader.next()["value"]["error"]
    assert error == {
        "status": 400,
        "error": "streaming.subscription.protocol.error",
        "message": "The number of requested elements must be > 0 (see reactive-streams specification, rule 3.9)",
    }
    subscription.request(1)
    assert reader.next()["value"]["error"]["message"] == (
        "This subscription is considered cancelled. No more messages are processed."
    )


def test_case_50_a_missing_demand_is_treated_as_zero(reader: MqttClient, lamp: str) -> None:
    subscription = Reader(reader, lamp)
    reader.command(topic(lamp, "streaming/request"), value={"subscriptionId": subscription.id})
    assert reader.next()["value"]["error"]["error"] == "streaming.subscription.protocol.error"


def test_case_56_57_an_unknown_id_is_not_found(reader: MqttClient, lamp: str) -> None:
    for action in ("request", "cancel"):
        failed = reader.ask_for(topic(lamp, f"streaming/{action}"), value={"subscriptionId": "4711", "demand": 1})
        assert failed["topic"] == topic(lamp, "streaming/failed")
        assert failed["value"] == {
            "subscriptionId": "4711",
            "error": {
                "status": 404,
                "error": "streaming.subscription.not.found",
                "message": "No subscription with ID '4711' exists.",
            },
        }


@pytest.mark.parametrize("requester", ["stranger", "other"])
def test_case_58_59_another_subject_or_connection_cannot_use_or_cancel_a_subscription(
    clients: dict[str, MqttClient], reader: MqttClient, lamp: str, requester: str
) -> None:
    """Another subject on the same connection, and the same subject on another connection."""
    subscription = Reader(reader, lamp)
    for action in ("request", "cancel"):
        answer = clients[requester].ask_for(
            topic(lamp, f"streaming/{action}"), value={"subscriptionId": subscription.id, "demand": 1}
        )
        assert answer["value"]["error"]["error"] == "streaming.subscription.not.found"
    assert len(subscription.all()) == 101


def test_case_60_a_request_may_name_another_entity(reader: MqttClient, lamp: str) -> None:
    subscription = Reader(reader, lamp)
    reader.command(topic("fan-1", "streaming/request"), value={"subscriptionId": subscription.id, "demand": 1})
    assert reader.next()["topic"] == topic(lamp, "streaming/next")
    subscription.cancel()


def test_case_61_a_request_without_an_id_is_an_error_response(reader: MqttClient, lamp: str) -> None:
    answer = reader.ask_for(topic(lamp, "streaming/request"), value={"demand": 1})
    assert (answer["topic"], answer["value"]["error"]) == (topic(lamp, "errors"), "json.field.missing")


def test_case_68_events_follow_the_latest_command_to_its_source(
    clients: dict[str, MqttClient], reader: MqttClient, lamp: str
) -> None:
    subscription = Reader(reader, lamp)
    second = clients["second"]
    second.command(topic(lamp, "streaming/request"), value={"subscriptionId": subscription.id, "demand": 1})
    assert second.next()["topic"] == topic(lamp, "streaming/next")
    subscription.cancel()


def test_a_subscribe_right_after_a_modify_sees_it(reader: MqttClient, writer: MqttClient) -> None:
    """One source, two messages without a pause: the history contains the first one."""
    make(writer, "lamp-10", attributes={"n": 0})
    for number in range(1, 30):
        writer.command(topic("lamp-10", "commands/modify"), "/attributes/n", number)
        writer.command(topic("lamp-10", "streaming/subscribeForPersistedEvents"), value={"fromHistoricalRevision": -1})
        answers = [writer.next() for _ in range(2)]
        (created,) = [answer for answer in answers if answer["topic"].endswith("created")]
        writer.command(topic("lamp-10", "streaming/request"), value={"demand": 1, **created["value"]})
        event, _complete = writer.until("complete")
        assert event["value"]["item"]["value"] == number


def test_a_path_other_than_the_root_is_refused(reader: MqttClient, lamp: str) -> None:
    answer = reader.ask_for(topic(lamp, "streaming/subscribeForPersistedEvents"), "/attributes")
    assert (answer["value"]["status"], answer["value"]["error"]) == (400, "protocoladapter:unknown.path")


def test_a_client_that_sends_an_event_gets_an_error(reader: MqttClient, lamp: str) -> None:
    answer = reader.ask_for(topic(lamp, "streaming/created"), value={"subscriptionId": "x"})
    assert answer["value"]["error"] == "protocoladapter:unknown.topicpath"


def test_too_many_subscriptions_are_refused(mosquitto: Mosquitto, tmp_path: Path) -> None:
    harness = connection(mosquitto, source("limit/writer", WRITER))
    with (
        ServiceProcess.start(tmp_path, [harness], subscriptions={"max_per_user": 2}),
        client(mosquitto, "limit/writer") as requester,
    ):
        subscribe = topic("lamp-1", "streaming/subscribeForPersistedEvents")
        answers = [requester.ask_for(subscribe) for _ in range(3)]
        assert [answer["topic"].rsplit("/", 1)[1] for answer in answers] == ["created", "created", "errors"]
        assert answers[-1]["value"]["error"] == "streaming.subscription.limit"
        assert answers[-1]["status"] == 429
