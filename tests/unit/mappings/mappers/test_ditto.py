"""The Ditto protocol's codec: messages against the vector files, and what every codec does."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mappings.errors import DecodeError, EncodeError, Fault
from mappings.ids import EntityId, EntityType
from mappings.mappers import load_codec
from mappings.mappers.base import Codec
from mappings.model.envelope import Envelope
from mappings.model.signals import (
    Acknowledgement,
    Cancel,
    Command,
    Complete,
    Created,
    ErrorResponse,
    Event,
    Failed,
    HistoryQuery,
    Inbound,
    Live,
    LiveAnswer,
    LiveCommand,
    LiveEvent,
    LiveResponse,
    Message,
    MessageResponse,
    Next,
    Outbound,
    Request,
    Response,
    Subscribe,
    SubscriptionKind,
)
from mappings.model.topic_path import topic_of
from tests.contract.codec import CodecBehaviors
from tests.support.acceptance import accepts
from tests.support.dice import examples
from tests.support.table import each_row
from tests.support.vectors import ditto as vectors

CODEC = load_codec("Ditto")
READ = [*vectors.load("commands"), *vectors.load("streaming"), *vectors.load("search")]
LAMP = EntityId(EntityType.THING, "acme.site", "lamp-7")


def decode(payload: bytes) -> Sequence[Inbound]:
    return CODEC.decode(Envelope(payload, {}), None)


def test_a_message_is_read_in_the_charset_of_its_content_type() -> None:
    text = '{"topic":"acme.site/lamp-7/things/twin/commands/modify","path":"/attributes/name","value":"Grüße"}'
    envelope = Envelope(text.encode("latin-1"), {"content-type": "application/json; charset=ISO-8859-1"})
    (signal,) = CODEC.decode(envelope, None)
    assert isinstance(signal, Command)
    assert signal.value == '"Grüße"'.encode()


def refused(payload: bytes) -> DecodeError:
    with pytest.raises(DecodeError) as caught:
        decode(payload)
    return caught.value


def modify(value: str) -> bytes:
    topic = "acme.site/lamp-7/things/twin/commands/modify"
    return f'{{"topic":"{topic}","headers":{{"correlation-id":"c-1"}},"path":"/attributes/n","value":{value}}}'.encode()


# --- reading ------------------------------------------------------------------------------------------------------------


@each_row("row", READ, ids=vectors.about)
def test_a_message_is_read(row: dict[str, Any]) -> None:
    assert list(CODEC.decode(vectors.envelope(row), None)) == [vectors.signal(row["signal"])]


@each_row("row", vectors.load("live"), ids=vectors.about)
def test_a_live_message_is_decoded(row: dict[str, Any]) -> None:
    assert list(CODEC.decode(vectors.envelope(row), None)) == [vectors.signal(signal) for signal in row["signals"]]


@pytest.mark.parametrize("size", [256_000, 256_001])
def test_the_value_of_a_message_is_bounded(size: int) -> None:
    topic, path = "acme.site/lamp-7/things/live/messages/x", "/inbox/messages/x"
    payload = json.dumps({"topic": topic, "path": path, "value": "x" * (size - 2)}).encode()
    if size == 256_000:
        assert len(decode(payload)) == 1
    else:
        assert (refused(payload).fault.status, refused(payload).fault.error) == (413, "messages:payload.toolarge")


@each_row("row", vectors.load("refused"), ids=vectors.about)
def test_a_message_is_refused(row: dict[str, Any]) -> None:
    error = refused(vectors.payload(row))
    expected = row["refused"]
    found = {"status": error.fault.status, "error": error.fault.error, "message": error.fault.message}
    found["description"] = error.fault.description
    assert {name: found[name] for name in expected["fault"]} == expected["fault"]
    assert error.entity == vectors.entity(expected["entity"])
    assert error.group == expected["group"]
    assert error.headers == expected["headers"]


@each_row(
    ("members", "code"),
    [
        ('"value":1', "json.field.missing"),
        ('"path":"/outbox/messages/ring","value":1e999', "json.invalid"),
        ('"path":"/outbox/messages/ring","headers":{"timeout":"-1s"}', "timeout.invalid"),
        ('"path":"/outbox/messages/knock"', "protocoladapter:unknown.path"),
    ],
)
def test_an_error_is_on_the_channel_of_its_message(members: str, code: str) -> None:
    error = refused(f'{{"topic":"acme.site/lamp-7/things/live/messages/ring",{members}}}'.encode())
    assert (error.fault.error, error.entity, error.group, error.channel) == (code, LAMP, "things", "live")


@pytest.mark.parametrize("row", vectors.load("ignored"), ids=vectors.about)
def test_an_error_that_comes_in_means_nothing(row: dict[str, Any]) -> None:
    """Otherwise two services that respond to each other would never stop."""
    assert list(CODEC.decode(vectors.envelope(row), None)) == []


def test_the_answer_to_an_unreadable_message_is_not_answered_again() -> None:
    error = refused(b"hello")
    (answer,) = CODEC.encode(ErrorResponse(error.entity, error.group, error.fault, error.headers), None)
    assert list(CODEC.decode(answer, None)) == []


@pytest.mark.parametrize("depth", [1, 100, 200])
def test_a_value_may_be_nested_200_deep(depth: int) -> None:
    (command,) = decode(modify("[" * depth + "]" * depth))
    assert isinstance(command, Command)


@pytest.mark.parametrize("depth", [201, 500, 5_000, 400_000])
def test_a_value_nested_deeper_is_json_invalid(depth: int) -> None:
    assert refused(modify("[" * depth + "]" * depth)).fault.error == "json.invalid"
    assert refused(modify('{"a":' * depth + "1" + "}" * depth)).fault.error == "json.invalid"


def test_many_brackets_side_by_side_or_in_strings_are_not_deep() -> None:
    value = json.dumps({"flat": [[], {}] * 300, "text": "[{" * 300})
    (command,) = decode(modify(value))
    assert isinstance(command, Command)
    assert json.loads(command.value or b"") == json.loads(value)


def test_acknowledgements_of_one_message_do_not_multiply_its_headers() -> None:
    message = {
        "topic": "acme.site/lamp-7/things/twin/acks",
        "path": "/",
        "headers": {f"x-{number}": "1" for number in range(1000)},
        "value": {"tenant:stored": [{"status": 200, "headers": {"x": "1"}}] * 1000},
    }
    payload = json.dumps(message).encode()
    tracemalloc.start()
    try:
        assert len(decode(payload)) == 1000
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 5 << 20, f"{most} bytes for a message of {len(payload)} bytes"


def test_case_16_a_revision_may_be_written_as_a_float_and_not_as_a_text() -> None:
    subscribe = vectors.payload(
        {
            "message": {
                "topic": "acme.site/lamp-7/things/twin/streaming/subscribeForPersistedEvents",
                "path": "/",
                "value": {"fromHistoricalRevision": 1.0},
            }
        }
    )
    (signal,) = decode(subscribe)
    assert isinstance(signal, Subscribe)
    assert isinstance(signal.query, HistoryQuery)
    assert signal.query.from_revision == 1
    assert type(signal.query.from_revision) is int
    assert refused(subscribe.replace(b"1.0", b"1.5")).fault.error == "json.format.invalid"
    assert refused(subscribe.replace(b"1.0", b'"1"')).fault.error == "json.invalid"


def test_case_34_a_refused_demand_keeps_the_headers_that_the_response_needs() -> None:
    error = refused(
        b'{"topic":"acme.site/pol-7/policies/streaming/request","headers":{"Correlation-Id":"r-2"},"path":"/",'
        b'"value":{"subscriptionId":"00","demand":"2"}}'
    )
    assert (str(error.entity), error.group, error.headers) == ("acme.site:pol-7", "policies", {"correlation-id": "r-2"})


def test_a_header_of_a_wrong_type_leaves_the_others_to_the_answer() -> None:
    error = refused(
        b'{"topic":"acme.site/lamp-7/things/twin/commands/delete","path":"/","headers":'
        b'{"timeout":-1,"correlation-id":"c-1","reply-to":"replies/7"}}'
    )
    assert error.fault.error == "timeout.invalid"
    assert error.entity == LAMP
    assert error.headers == {"correlation-id": "c-1", "reply-to": "replies/7"}


@pytest.mark.parametrize("headers", [{"correlation-id": "a\0b"}, {"my\0own": "b"}])
def test_headers_with_u0000_are_refused(headers: dict[str, str]) -> None:
    document = {"topic": "a/b/things/twin/commands/modify", "path": "/attributes/on", "headers": headers, "value": 1}
    assert refused(json.dumps(document).encode()).fault.error in ("json.invalid", "json.key.invalid")


def test_a_message_never_grows_its_answer() -> None:
    long = "x" * 100_000
    for payload in (
        long.encode(),
        json.dumps({"topic": long, "path": "/"}).encode(),
        json.dumps({"topic": f"a/b/{long}", "path": "/"}).encode(),
        json.dumps({"topic": f"a/{'ä' * 1000}/things/twin/commands/modify", "path": "/"}).encode(),
        json.dumps({"topic": "a/b/things/twin/commands/modify", "path": f"/{long}"}).encode(),
        json.dumps({"topic": "a/b/things/twin/commands/modify", "path": [long]}).encode(),
        json.dumps({"topic": "a/b/things/twin/commands/modify", "path": f"//{long}"}).encode(),
        json.dumps({"topic": f"a/b/things/twin/commands/{long}", "path": "/"}).encode(),
        modify(f'{{"{long}\\u0000":1}}'),
    ):
        fault = refused(payload).fault
        assert len(fault.message) + len(fault.description or "") < 1_000


# --- writing ------------------------------------------------------------------------------------------------------------


@each_row("row", vectors.load("outgoing"), ids=vectors.about)
def test_a_signal_is_encoded(row: dict[str, Any]) -> None:
    envelopes = CODEC.encode(vectors.signal(row["signal"]), None)
    assert [json.loads(envelope.payload) for envelope in envelopes] == row["messages"]


@each_row("row", vectors.load("outgoing"), ids=vectors.about)
def test_members_are_written_in_the_usual_order(row: dict[str, Any]) -> None:
    order = ["topic", "headers", "path", "value", "extra", "status", "revision", "timestamp", "fields"]
    for envelope in CODEC.encode(vectors.signal(row["signal"]), None):
        message = json.loads(envelope.payload)
        for written in [message, message.get("value", {}).get("item", {}) if "streaming" in message["topic"] else {}]:
            assert list(written) == [name for name in order if name in written]


@each_row("row", vectors.load("outgoing"), ids=vectors.about)
def test_the_transport_is_reported_content_type_and_correlation_id_and_nothing_else(row: dict[str, Any]) -> None:
    signal = vectors.signal(row["signal"])
    expected = {"content-type": "application/vnd.eclipse.ditto+json"}
    if isinstance(signal.headers, dict) and "correlation-id" in signal.headers:
        expected["correlation-id"] = signal.headers["correlation-id"]
    assert all(envelope.headers == expected for envelope in CODEC.encode(signal, None))


def test_the_envelopes_of_a_batch_share_their_headers() -> None:
    row = next(row for row in vectors.load("outgoing") if row["about"].startswith("case 21"))
    first, second = CODEC.encode(vectors.signal(row["signal"]), None)
    assert first.headers is second.headers


def test_case_21_an_item_keeps_the_spelling_of_its_value() -> None:
    event = vectors.event(
        {
            "entity": "thing acme.site:lamp-7",
            "revision": 9,
            "timestamp": "2024-05-01T09:00:09.000000Z",
            "action": "modified",
            "path": "/attributes/n",
            "value": '{"a":1.50,"b":"\\u0041","n":1E-400}',
            "headers": "{}",
        }
    )
    (envelope,) = CODEC.encode(Next(SubscriptionKind.HISTORY, "k", LAMP, {}, [event], {}), None)
    assert b'"path":"/attributes/n","value":{"a":1.50,"b":"\\u0041","n":1E-400},"revision":9' in envelope.payload


def test_unsupported_signals_are_encode_errors() -> None:
    event = vectors.event(
        {
            "entity": "thing acme.site:lamp-7",
            "revision": 1,
            "timestamp": "",
            "action": "x",
            "path": "",
            "value": None,
            "headers": "{}",
        }
    )
    for signal in (
        Next(SubscriptionKind.HISTORY, "k", None, {}, [event], {}),
        Next(SubscriptionKind.HISTORY, "k", LAMP, {}, [event], {}),
        Complete(SubscriptionKind.HISTORY, "k", LAMP, {"broken": "\ud800"}),
        Response(LAMP, "delete", "/", 204, None, {"broken": object()}),
    ):
        with pytest.raises(EncodeError):
            CODEC.encode(signal, None)


# --- what every codec does ----------------------------------------------------------------------------------------------


class DittoClient:
    """A client that knows the protocol from its description, and JSON from the standard library."""

    def send(self, signal: Inbound) -> Envelope:
        message: dict[str, Any] = {"topic": str(topic_of(signal)), "headers": dict(signal.headers), "path": "/"}
        if isinstance(signal, Command | Live | LiveAnswer | Acknowledgement):
            message["path"] = getattr(signal, "path", "/")
            if signal.value is not None:
                message["value"] = json.loads(signal.value)
            for member in ("fields", "status"):
                if getattr(signal, member, None) is not None:
                    message[member] = getattr(signal, member)
        elif isinstance(signal, Subscribe):
            query = signal.query
            assert isinstance(query, HistoryQuery)
            message["value"] = {"fromHistoricalRevision": query.from_revision, "filter": query.filter}
        else:
            assert isinstance(signal, Request | Cancel)
            message["value"] = {"subscriptionId": signal.key}
            if isinstance(signal, Request):
                message["value"]["demand"] = signal.demand
        return Envelope(json.dumps(message).encode(), {})

    def receive(self, envelopes: Sequence[Envelope]) -> Outbound:
        messages = [json.loads(envelope.payload) for envelope in envelopes]
        message = messages[0]
        namespace, name, group, *_, action = message["topic"].split("/")
        type = EntityType.POLICY if group == "policies" else EntityType.THING
        entity, headers, value = EntityId(type, namespace, name), message["headers"], message.get("value")
        match action:
            case "errors":
                fault = Fault(value["status"], value["error"], value["message"], value.get("description"))
                return ErrorResponse(entity, group, fault, headers)
            case "created":
                return Created(SubscriptionKind.HISTORY, value["subscriptionId"], entity, headers)
            case "complete":
                return Complete(SubscriptionKind.HISTORY, value["subscriptionId"], entity, headers)
            case "failed":
                error = value["error"]
                reason = Fault(error["status"], error["error"], error["message"], error.get("description"))
                return Failed(SubscriptionKind.HISTORY, value["subscriptionId"], entity, headers, reason)
            case "next":
                return self._hear_items(messages, entity)
            case _:
                raw = None if value is None else compact(value)
                return Response(entity, action, message["path"], message["status"], raw, headers)

    def _hear_items(self, messages: list[dict[str, Any]], entity: EntityId) -> Next:
        items = [message["value"]["item"] for message in messages]
        events = [
            Event(
                entity,
                item["headers"]["entity-revision"],
                item["timestamp"],
                item["topic"].rpartition("/")[2],
                item["path"],
                compact(item["value"]) if "value" in item else None,
                compact(item["headers"]["historical-headers"]),
            )
            for item in items
        ]
        own = ("historical-headers", "entity-revision", "content-type")
        subscribed = {name: value for name, value in items[0]["headers"].items() if name not in own}
        key = messages[0]["value"]["subscriptionId"]
        return Next(SubscriptionKind.HISTORY, key, entity, messages[0]["headers"], events, subscribed)


def compact(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


ANSWERED = {"correlation-id": "c-1", "content-type": "application/json", "response-required": False, "version": 2}
STREAMED = {"correlation-id": "c-1", "content-type": "application/json"}
FAULT = Fault(404, "things:thing.notfound", "There is no such thing.", "Look elsewhere.")


class TestBehaviors(CodecBehaviors):
    def codec(self) -> Codec:
        return CODEC

    def client(self) -> DittoClient:
        return DittoClient()

    def commands(self) -> Sequence[Inbound]:
        headers = {"correlation-id": "c-1"}
        value = b'{"text":"\\u00e4 [{","list":[1,2.5,null,true]}'
        return [
            Command(LAMP, "modify", "/attributes/a b", value, headers),
            Command(LAMP, "retrieve", "/", None, headers, "attributes"),
            Command(LAMP._replace(type=EntityType.POLICY), "delete", "/entries/owner", None, headers),
            Subscribe(SubscriptionKind.HISTORY, HistoryQuery(LAMP, -5, filter="exists(attributes)"), headers),
            Request(SubscriptionKind.HISTORY, "key-1", 7, headers, LAMP),
            Cancel(SubscriptionKind.HISTORY, "key-1", headers, LAMP),
            Message(LAMP, "from", "a/b", "/features/x y/outbox/messages/a/b", value, headers),
            MessageResponse(LAMP, "to", "a", "/inbox/messages/a", 404, None, headers),
            LiveCommand(LAMP, "retrieve", "/", None, headers, "attributes"),
            LiveResponse(LAMP, "merge", "/attributes", 204, value, headers),
            LiveEvent(LAMP, "deleted", "/attributes/a", None, headers),
            Acknowledgement(LAMP, "other:seen", 200, value, headers, "live"),
        ]

    def answers(self) -> Sequence[Outbound]:
        events = [
            Event(LAMP, 1, "2030-01-15T07:30:00.250000Z", "created", "/", b'{"a":1}', b"{}"),
            Event(LAMP, 2, "2030-01-15T07:30:01.250000Z", "merged", "/a", b'{"b":null}', b'{"x":"y"}'),
            Event(LAMP, 3, "2030-01-15T07:30:02.250000Z", "deleted", "/a", None, b"{}"),
        ]
        return [
            Response(LAMP, "retrieve", "/attributes", 200, b'{"a":[1]}', ANSWERED),
            Response(LAMP._replace(type=EntityType.POLICY), "modify", "/", 204, None, ANSWERED),
            ErrorResponse(LAMP, "things", FAULT, ANSWERED),
            ErrorResponse(LAMP._replace(type=EntityType.POLICY), "policies", FAULT, ANSWERED),
            Created(SubscriptionKind.HISTORY, "key-1", LAMP, STREAMED),
            Next(SubscriptionKind.HISTORY, "key-1", LAMP, STREAMED, events, {"correlation-id": "c-0", "mine": "1"}),
            Complete(SubscriptionKind.HISTORY, "key-1", LAMP, STREAMED),
            Failed(SubscriptionKind.HISTORY, "key-1", LAMP, STREAMED, FAULT),
        ]

    JSON = st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
        max_leaves=8,
    )

    @accepts(at_least=1)
    @settings(max_examples=examples(300), deadline=None)
    @given(
        row=st.sampled_from(READ),
        member=st.sampled_from(["topic", "path", "headers", "value", "fields", "status", "payload"]),
        replacement=JSON,
    )
    def test_a_message_with_any_member_is_a_command_or_a_decode_error(
        self, row: dict[str, Any], member: str, replacement: Any
    ) -> None:
        message = json.loads(vectors.payload(row))
        message[member] = replacement
        self.decode_something(json.dumps(message).encode("utf-8", "surrogatepass"))

    @settings(max_examples=examples(60), deadline=None)
    @given(value=JSON)
    def test_any_json_is_a_command_or_a_decode_error(self, value: Any) -> None:
        self.decode_something(json.dumps(value).encode("utf-8", "surrogatepass"))

    @accepts(at_least=1)
    @settings(max_examples=examples(500), deadline=None)
    @given(
        asked=st.tuples(
            st.text("acme/._-:;{}0", max_size=20),
            st.sampled_from(["", "/things/twin/commands/modify", "/policies/streaming/request", "/things/live/acks/x"]),
            st.text("/~01abentriesubjctp.:", max_size=30),
        )
        | st.tuples(
            st.sampled_from(["acme/a", "a.b/c:d"]),
            st.sampled_from(["/things/twin/commands/retrieve", "/things/twin/commands/delete"]),
            st.sampled_from(["/", "/attributes/a", "/a"]),
        )
    )
    def test_any_topic_and_path_is_a_command_or_a_decode_error(self, asked: tuple[str, str, str]) -> None:
        text, rest, path = asked
        self.decode_something(json.dumps({"topic": text + rest, "path": path}).encode())
