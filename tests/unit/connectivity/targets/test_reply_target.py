"""Published replies of a signal: their address and headers, the counters and the log.

Case numbers are those of the cases for connections.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from structlog.testing import capture_logs

from connectivity.connections.model import Connection
from connectivity.errors import PublishFailed
from connectivity.monitoring.prometheus import PrometheusRegistry
from connectivity.targets import reply_target
from connectivity.targets.outbox import Outbox
from connectivity.targets.reply_target import MAX_TRIES, ReplyTargetPublisher, failure_of
from connectivity.transports.base import OutboundMessage
from mappings.errors import Fault
from mappings.ids import EntityId, EntityType
from mappings.model.signals import (
    Acknowledgement,
    Acknowledgements,
    Complete,
    Created,
    EndReason,
    ErrorResponse,
    Event,
    Failed,
    LiveResponse,
    MessageResponse,
    Next,
    Outbound,
    Response,
    SubscriptionKind,
)
from tests.support.in_process.fakes import Link
from tests.support.in_process.service import LAMP, NOW, OWNER, connection, source
from tests.support.wait import wait_until

POLICY = EntityId(EntityType.POLICY, "acme.site", "lamp-7")
FAULT = Fault(404, "things:thing.notfound", "The Thing could not be found.")
BOTH = ("correlation-id", "content-type")


class Way:
    """A route, its outbox without a link, and its counters."""

    def __init__(self, made: Connection, index: int = 0) -> None:
        self.monitor = PrometheusRegistry()
        self.outbox = Outbox()
        self.route = ReplyTargetPublisher(made, index, self.outbox, self.monitor.meter(made.id), lambda: NOW)

    def publishes(self, signal: Outbound, **options: Any) -> Sequence[OutboundMessage]:
        """The messages that a link is given, which goes afterwards."""
        link = Link()
        self.outbox.attach(link)
        self.route.post(signal, **options)
        link.confirm()
        self.outbox.detach()
        return tuple(link.published)

    def addresses(self, signal: Outbound, **options: Any) -> list[str]:
        return [message.address for message in self.publishes(signal, **options)]

    def count(self, outcome: str) -> float:
        labels = {"connection": "site", "direction": "out", "outcome": outcome}
        return self.monitor.registry.get_sample_value("connectivity_deliveries_total", labels) or 0.0

    def events_sent(self) -> float:
        labels = {"connection": "site"}
        return self.monitor.registry.get_sample_value("connectivity_events_sent_total", labels) or 0.0


def way(reply: dict[str, Any] | None = None, *, type: str = "memory", **more: Any) -> Way:
    """A way whose source has this reply-target."""
    reply = {"address": "out"} if reply is None else reply
    return Way(connection(source(replyTarget=reply, **more), connectionType=type))


def response(status: int = 204, path: str = "/attributes/on", **headers: Any) -> Response:
    return Response(LAMP, "modify", path, status, None, dashed(headers))


def error(entity: EntityId | None = LAMP, **headers: Any) -> ErrorResponse:
    return ErrorResponse(entity, "things", FAULT, dashed(headers))


def dashed(headers: dict[str, Any]) -> dict[str, Any]:
    return {"correlation-id": "c-1", **{name.replace("_", "-"): value for name, value in headers.items()}}


def event(revision: int) -> Event:
    return Event(LAMP, revision, "2030-01-15T07:30:00.250000Z", "modified", "/attributes/on", b"true", b"{}")


def elements(number: int, **headers: Any) -> Next:
    return Next(
        SubscriptionKind.HISTORY, "s-1", LAMP, dashed(headers), [event(revision + 1) for revision in range(number)], {}
    )


EVENTS: list[Outbound] = [
    Created(SubscriptionKind.HISTORY, "s-1", LAMP, {}),
    elements(1),
    Complete(SubscriptionKind.HISTORY, "s-1", LAMP, {}),
    Failed(SubscriptionKind.HISTORY, "s-1", LAMP, {}, FAULT),
]


# which answers are wanted


def test_responses_and_errors_are_expected_by_default() -> None:
    assert way().addresses(response()) == way().addresses(error()) == ["out"]


@pytest.mark.parametrize(
    ("expected", "passes"),
    [
        pytest.param(["response"], (True, False), id="response"),
        pytest.param(["ERROR"], (False, True), id="error in capitals"),
        pytest.param(["nack"], (False, False), id="nack"),
        pytest.param([], (False, False), id="none at all"),
    ],
)
def test_an_answer_passes_only_if_its_kind_is_expected(expected: list[str], passes: tuple[bool, bool]) -> None:
    only = way({"address": "out", "expectedResponseTypes": expected})
    assert (bool(only.publishes(response(400))), bool(only.publishes(error()))) == passes
    assert only.count("not_expected") == passes.count(False)


@pytest.mark.parametrize("signal", EVENTS, ids=lambda signal: type(signal).__name__)
def test_case_27_subscription_events_are_sent_regardless_of_the_expected_response_types(signal: Outbound) -> None:
    assert way({"address": "out", "expectedResponseTypes": []}).addresses(signal) == ["out"]


@pytest.mark.parametrize(
    "headers", [{"response_required": False}, {"timeout": "0"}], ids=["not required", "no timeout"]
)
def test_case_41_a_command_that_requires_no_response_gets_no_response(headers: dict[str, Any]) -> None:
    silent = way()
    assert silent.publishes(response(**headers)) == silent.publishes(error(**headers)) == ()
    assert silent.count("not_expected") == 2


def test_case_50_an_unreadable_message_gets_an_error_even_if_no_response_is_required() -> None:
    assert way().addresses(error(response_required=False), unasked=True) == ["out"]
    assert way({"address": "out", "expectedResponseTypes": ["response"]}).addresses(error(), unasked=True) == []


def test_events_are_published_for_a_command_that_requires_no_response() -> None:
    assert way().addresses(elements(1, response_required=False)) == ["out"]


@pytest.mark.parametrize(
    "reply", [{"enabled": False}, {"address": "out", "enabled": False}], ids=["plain", "addressed"]
)
def test_a_disabled_reply_target_publishes_nothing_at_all(reply: dict[str, Any]) -> None:
    silent = way(reply)
    for signal in (response(), error(), *EVENTS):
        assert silent.publishes(signal) == ()
    assert silent.count("no_reply_target") == 6


# to which address


def test_without_an_address_answers_go_to_the_reply_to_address_of_the_command() -> None:
    default = Way(connection({"addresses": ["in"], "authorizationContext": [OWNER]}))
    assert default.addresses(response(reply_to="desk/4")) == ["desk/4"]


def test_an_address_is_filled_from_the_signal() -> None:
    filled = way({"address": "{{ thing:namespace }}/{{ header:desk }}/{{ topic:action }}/{{ connection:id }}"})
    assert filled.addresses(response(desk="d4")) == ["acme.site/d4/modify/site"]
    assert filled.addresses(Created(SubscriptionKind.HISTORY, "s-1", LAMP, {"desk": "d4"})) == [
        "acme.site/d4/created/site"
    ]


def test_an_address_may_name_resource_type_feature_and_sender() -> None:
    filled = way({"address": "{{ resource:type }}/{{ feature:id }}/{{ request:subjectId }}"})
    answer = response(path="/features/bulb/properties/on", ditto_originator="acme:owner")
    assert filled.addresses(answer) == ["thing/bulb/acme:owner"]


@pytest.mark.parametrize("template", ["{{ header:reply-to }}", "answers/{{ header:desk }}"])
def test_a_message_with_an_unresolved_address_is_dropped_and_counted(template: str) -> None:
    lost = way({"address": template})
    for signal in (response(), error(), *EVENTS):
        assert lost.publishes(signal) == ()
    assert lost.count("address_unresolved") == 6


@pytest.mark.parametrize(
    ("template", "hint"),
    [("{{ header:reply-to }}", "headerMapping"), ("answers/{{ feature:id }}", "no value for a placeholder")],
)
def test_the_hint_about_a_missing_address_names_headers_only_where_the_address_has_one(
    template: str, hint: str
) -> None:
    with capture_logs() as logs:
        way({"address": template}).route.post(response())
    (entry,) = (entry for entry in logs if entry["event"] == "signal has no address")
    assert hint in entry["hint"]


def test_the_log_has_the_reason_of_a_failed_subscription() -> None:
    failed = Failed(SubscriptionKind.HISTORY, "s-1", LAMP, {}, EndReason.IDLE)
    assert failure_of(failed) == "The subscription failed: the client sent no request in time."


def test_an_answer_without_an_address_is_logged_once_with_its_template() -> None:
    lost = way({"address": "{{ header:reply-to }}"})
    with capture_logs() as lines:
        for _ in range(3):
            lost.publishes(response())
    assert [(line["log_level"], line["address"]) for line in lines] == [
        ("warning", "{{ header:reply-to }}"),
        ("debug", "{{ header:reply-to }}"),
        ("debug", "{{ header:reply-to }}"),
    ]


LIMITED = {"address": "{{ header:reply-to }}", "addressPattern": "clients/*/answers"}


def test_an_address_that_the_pattern_allows_is_published_to() -> None:
    assert way(LIMITED).addresses(response(reply_to="clients/app/answers")) == ["clients/app/answers"]
    assert way({"addressPattern": "clients/**"}).addresses(response(reply_to="clients/a/b")) == ["clients/a/b"]


@pytest.mark.parametrize(
    "address",
    ["fleet/7/commands", "clients/answers", "clients/a/b/answers", "clients/a/answers/x", "x/clients/a/answers"],
)
def test_a_message_to_an_address_that_the_pattern_does_not_allow_is_dropped_counted_and_logged(address: str) -> None:
    limited = way(LIMITED)
    outcomes: list[object] = []
    with capture_logs() as lines:
        for signal in (response(reply_to=address), error(reply_to=address)):
            assert limited.publishes(signal, ended=outcomes.append) == ()
    assert outcomes == [None, None]
    assert (limited.count("address_not_allowed"), limited.count("failed")) == (2, 0)
    assert [(line["event"], line["log_level"]) for line in lines] == [
        ("address not allowed", "warning"),
        ("address not allowed", "debug"),
    ]
    assert f"'{address}' is not allowed" in lines[0]["error"]


def test_an_address_in_a_header_of_mqtt_has_to_match_the_pattern_too() -> None:
    reply = {"address": "answers/a", "addressPattern": "answers/*", "headerMapping": {"mqtt.topic": "{{ header:to }}"}}
    limited = way(reply)
    assert [message.envelope.headers["mqtt.topic"] for message in limited.publishes(response(to="answers/b"))] == [
        "answers/b"
    ]
    assert limited.publishes(response(to="fleet/commands")) == ()
    assert limited.count("address_not_allowed") == 1


@pytest.mark.parametrize("value", ["$SYS/x", "a/#", "a/+/b", "a\nb", "a//b", "/a", "a/"])
def test_an_unsafe_reply_address_is_refused_logged_and_never_published(value: str) -> None:
    unsafe = way({"address": "{{ header:reply-to }}"})
    with capture_logs() as lines:
        assert unsafe.publishes(response(reply_to=value)) == ()
    assert unsafe.count("failed") == 1
    (line,) = lines
    assert line["log_level"] == "warning"
    assert (line["connection"], line["source"], line["correlation_id"]) == ("site", 0, "c-1")
    assert "cannot be part of an address" in line["error"]


@pytest.mark.parametrize("key", ["", "pump#1", "+49 30 1", "/a//b/", "$a", ".."])
def test_rule_2_4_the_key_of_a_kafka_address_may_be_any_text(key: str) -> None:
    keyed = way({"address": "answers/{{ header:key }}"}, type="kafka")
    assert keyed.addresses(response(key=key)) == [f"answers/{key}"]
    assert keyed.count("failed") == 0


@pytest.mark.parametrize("address", ["{{ header:reply-to }}", "{{ header:reply-to | fn:trim() }}"])
@pytest.mark.parametrize("type", ["kafka", "amqp-091"])
def test_the_key_in_an_address_of_a_client_may_be_any_text(type: str, address: str) -> None:
    keyed = way({"address": address, "addressPattern": "answers/*"}, type=type)
    assert keyed.addresses(response(reply_to="answers/acme.site:pump#1")) == ["answers/acme.site:pump#1"]
    for refused in ("#answers/pump", "/pump#1", "$answers/pump#1", "answers/pump\n#1", "answers#1"):
        assert keyed.publishes(response(reply_to=refused)) == ()


@pytest.mark.parametrize("reply", [{}, {"addressPattern": "/*"}, {"address": "{{ header:reply-to | fn:trim() }}"}])
def test_an_amqp_client_can_name_the_address_of_a_queue(reply: dict[str, str]) -> None:
    queued = way(reply, type="amqp-091")
    assert queued.addresses(response(reply_to="/pump-answers")) == ["/pump-answers"]
    for refused in ("+/pump", "$a/pump", "/pu\nmp", ""):
        assert queued.publishes(response(reply_to=refused)) == ()


@pytest.mark.parametrize(
    "address", ["answers{{ header:key }}", "answers#{{ header:key }}", "{{ header:key }}/{{ header:key }}"]
)
def test_the_topic_and_the_partition_of_a_kafka_address_are_checked(address: str) -> None:
    assert way({"address": address}, type="kafka").publishes(response(key="a#1")) == ()


def test_the_literal_part_of_an_address_template_is_not_checked() -> None:
    assert way({"address": "$SYS/+/{{ header:desk }}"}).addresses(response(desk="d4")) == ["$SYS/+/d4"]


def test_case_24_a_mapping_may_replace_the_address_of_mqtt() -> None:
    replaced = way({"address": "out", "headerMapping": {"mqtt.topic": "to/{{ header:desk }}", "mqtt.qos": "0"}})
    (message,) = replaced.publishes(response(desk="d4"))
    assert (message.address, message.envelope.headers["mqtt.topic"]) == ("out", "to/d4")
    (message,) = replaced.publishes(response())
    assert "mqtt.topic" not in message.envelope.headers
    assert message.envelope.headers["mqtt.qos"] == "0"


def test_a_mapped_address_is_checked_like_any_other() -> None:
    replaced = way({"address": "out", "headerMapping": {"mqtt.topic": "{{ header:reply-to }}"}})
    with capture_logs() as lines:
        assert replaced.publishes(response(reply_to="$SYS/x")) == ()
    assert (replaced.count("failed"), len(lines)) == (1, 1)


@pytest.mark.parametrize(("qos", "published"), [({}, 1), ({"qos": 0}, 0), ({"qos": 2}, 2)])
def test_answers_have_the_quality_of_service_of_their_source(qos: dict[str, Any], published: int) -> None:
    (message,) = way(**qos).publishes(response())
    assert message.qos == published


# with which headers


def test_a_message_has_the_codecs_headers() -> None:
    (message,) = way().publishes(response())
    assert message.envelope.headers == {"content-type": "application/vnd.eclipse.ditto+json", "correlation-id": "c-1"}


def test_case_20_mapped_headers_are_added_to_the_codecs() -> None:
    (message,) = way({"address": "out", "headerMapping": {"lamp": "{{ thing:name }}"}}).publishes(response())
    assert set(message.envelope.headers) == {*BOTH, "lamp"}
    assert message.envelope.headers["content-type"] == "application/vnd.eclipse.ditto+json"


def test_a_mapped_header_replaces_that_of_the_codec_but_never_removes_it() -> None:
    mapping = {"content-type": "text/plain", "correlation-id": "{{ header:missing }}"}
    (message,) = way({"address": "out", "headerMapping": mapping}).publishes(response())
    assert message.envelope.headers == {"content-type": "text/plain", "correlation-id": "c-1"}


def test_mapped_names_are_kept_as_they_are_written() -> None:
    mapping = {"Content-Type": "text/plain"}
    (message,) = way({"address": "out", "headerMapping": mapping}).publishes(response())
    assert set(message.envelope.headers) == {*BOTH, "Content-Type"}


def test_the_default_mapping_sends_the_content_type_of_the_signal() -> None:
    default = Way(connection({"addresses": ["in"], "authorizationContext": [OWNER]}))
    (message,) = default.publishes(response(reply_to="desk/4", content_type="application/json"))
    assert message.envelope.headers == {"content-type": "application/json", "correlation-id": "c-1"}


@pytest.mark.parametrize("sent", [{}, {"content_type": "application/merge-patch+json"}, {"content_type": "text/plain"}])
def test_rule_2_7_the_default_mapping_sends_errors_and_acknowledgements_as_json(sent: dict[str, str]) -> None:
    """As the message itself says, whatever the content type of the command was."""
    default = Way(connection({"addresses": ["in"], "authorizationContext": [OWNER]}))
    headers = dashed({"reply_to": "desk/4", **sent})
    for signal in (error(**headers), Acknowledgements(LAMP, _ACKS, 200, headers)):
        (message,) = default.publishes(signal)
        assert message.envelope.headers["content-type"] == "application/json"
        assert json.loads(message.envelope.payload)["headers"]["content-type"] == "application/json"


def test_the_default_mapping_leaves_the_content_type_of_other_protocols_alone() -> None:
    """A reader recognizes a cloud event by its content type, so that type stays."""
    default = Way(connection({"addresses": ["in"], "authorizationContext": [OWNER], "payloadMapping": ["CloudEvents"]}))
    (message,) = default.publishes(response(reply_to="desk/4", content_type="application/json"))
    assert message.envelope.headers["content-type"] == "application/cloudevents+json"


def test_elements_that_are_sent_together_share_their_headers() -> None:
    mapped = way({"address": "out", "headerMapping": {"lamp": "{{ thing:name }}"}})
    messages = mapped.publishes(elements(3))
    assert [json.loads(message.envelope.payload)["value"]["item"]["revision"] for message in messages] == [1, 2, 3]
    assert len({id(message.envelope.headers) for message in messages}) == 1


# posting


def test_messages_and_elements_count_when_the_broker_has_confirmed_them() -> None:
    posted, link = way(), Link()
    posted.outbox.attach(link)
    posted.route.post(response())
    posted.route.post(elements(3))
    assert (posted.count("published"), posted.events_sent(), len(posted.outbox)) == (0, 0, 4)
    link.confirm(3)
    assert (posted.count("published"), posted.events_sent()) == (1, 0)
    link.confirm()
    assert (posted.count("published"), posted.events_sent(), len(posted.outbox)) == (4, 3, 0)


def test_elements_without_an_address_are_not_counted_as_sent() -> None:
    lost = way({"address": "{{ header:reply-to }}"})
    lost.route.post(elements(3))
    assert (lost.events_sent(), lost.count("published"), lost.count("address_unresolved")) == (0, 0, 1)


def test_posting_an_unexpected_response_completes_immediately() -> None:
    ended: list[object] = []
    way().route.post(response(response_required=False), ended.append)
    assert ended == [None]


def test_elements_that_the_broker_does_not_take_are_seen() -> None:
    refused, link = way(), Link()
    refused.outbox.attach(link)
    refused.route.post(elements(2))
    with capture_logs() as lines:
        link.confirm(error=PublishFailed("not authorized"))
    assert refused.count("failed") == 1
    assert [(line["correlation_id"], line["error"]) for line in lines] == [("c-1", "not authorized")]


def test_an_answer_that_is_too_large_is_followed_by_an_error() -> None:
    """The requester does not wait for ever, and the delivery ends with the error's outcome."""
    made, link, ended = way(), Link(), list[object]()
    made.outbox.attach(link)
    made.route.post(response(200, **{"correlation-id": "c-7"}), ended.append)
    link.confirm(error=PublishFailed("at most 1000 bytes", status=413))
    assert ended == []
    _, reply = link.published
    answer = json.loads(reply.envelope.payload)
    assert (answer["status"], answer["value"]["error"]) == (413, "connectivity:message.sending.failed")
    assert answer["value"]["message"].endswith("larger than the broker accepts: at most 1000 bytes")
    assert (answer["topic"], answer["headers"]["correlation-id"]) == ("acme.site/lamp-7/things/twin/errors", "c-7")
    link.confirm(error=PublishFailed("at most 10 bytes", status=413))
    assert [type(error) for error in ended] == [PublishFailed]
    assert len(link.published) == 2, "an error is not followed by another one"
    assert made.count("failed") == 2


@pytest.mark.parametrize("signal", [EVENTS[0], *EVENTS[2:]], ids=lambda signal: type(signal).__name__)
async def test_a_control_message_of_a_subscription_that_a_full_queue_rejects_is_sent_again(
    signal: Outbound, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reply_target, "FIRST_PAUSE", 0.001)
    made, link, ended = way(), Link(), list[object]()
    made.outbox.attach(link)
    made.route.post(signal, ended.append)
    for sent in (2, 3):
        link.confirm(error=PublishFailed("the queue is full"))
        await until_sent(link, sent)
    link.confirm()
    assert ended == [None]
    assert len({message.envelope.payload for message in link.published}) == 1
    assert (made.count("published"), made.count("failed")) == (1, 0)


async def test_repeated_and_permanent_rejections_are_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reply_target, "FIRST_PAUSE", 0.0001)
    made, link, ended = way(), Link(), list[object]()
    made.outbox.attach(link)
    made.route.post(EVENTS[3], ended.append)
    full, too_large = PublishFailed("the queue is full"), PublishFailed("at most 10 bytes", status=413)
    with capture_logs() as lines:
        for sent in range(1, MAX_TRIES + 1):
            await until_sent(link, sent)
            assert ended == []
            link.confirm(error=full)
        made.route.post(EVENTS[3], ended.append)
        link.confirm(error=too_large)
    assert ended == [full, too_large]
    assert made.count("failed") == 2
    assert [line["error"] for line in lines] == ["the queue is full", "at most 10 bytes"]


async def until_sent(link: Link, number: int) -> None:
    await wait_until(lambda: len(link.published) == number, poll=0.001)


_ACKS = (Acknowledgement(LAMP, "twin-persisted", 204, None, {}), Acknowledgement(LAMP, "other:seen", 200, None, {}))


@pytest.mark.parametrize(
    "signal",
    [
        Acknowledgements(LAMP, _ACKS, 200, {"correlation-id": "c-7"}),
        MessageResponse(LAMP, "to", "blink", "/inbox/messages/blink", 200, b"1", {"correlation-id": "c-7"}),
        LiveResponse(LAMP, "modify", "/attributes/on", 204, None, {"correlation-id": "c-7"}),
    ],
    ids=lambda signal: type(signal).__name__,
)
def test_a_reply_that_is_too_large_is_followed_by_an_error(signal: Outbound) -> None:
    made, link, ended = way(), Link(), list[object]()
    made.outbox.attach(link)
    made.route.post(signal, ended.append)
    link.confirm(error=PublishFailed("at most 1000 bytes", status=413))
    _, reply = link.published
    answer = json.loads(reply.envelope.payload)
    assert (answer["status"], answer["headers"]["correlation-id"]) == (413, "c-7")
    link.confirm()
    assert ended == [None]


def test_an_answer_that_is_refused_for_another_reason_is_not_followed_by_an_error() -> None:
    made, link, ended = way(), Link(), list[object]()
    made.outbox.attach(link)
    made.route.post(response(200), ended.append)
    link.confirm(error=PublishFailed("no such topic", status=400))
    assert [type(error) for error in ended] == [PublishFailed]
    assert len(link.published) == 1


def test_an_internal_error_while_writing_fails_that_answer_only(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = way()

    def encode(signal: Outbound, session: object) -> Sequence[Any]:
        raise RuntimeError("internal error")

    ended: list[object] = []
    with monkeypatch.context() as patched, capture_logs() as lines:
        patched.setattr(
            type(broken.route.mapper.codec), "encode", lambda _self, signal, session: encode(signal, session)
        )
        broken.route.post(response(), ended.append)
    assert ended == [None]
    assert broken.count("failed") == 1
    assert [(line["correlation_id"], line["exc_info"]) for line in lines] == [("c-1", True)]
    assert broken.addresses(response()) == ["out"]


# several sources


def test_case_02_each_source_answers_at_its_own_reply_target() -> None:
    made = connection(source("a"), source("b", replyTarget={"address": "other"}))
    assert Way(made, 0).addresses(response()) == ["out"]
    assert Way(made, 1).addresses(response()) == ["other"]


def test_a_source_may_name_its_wire_protocol_through_a_definition() -> None:
    definitions = {"twinOnly": {"mappingEngine": "Ditto", "options": {}}}
    named = Way(connection(source(payloadMapping=["twinOnly"]), mappingDefinitions=definitions))
    assert named.addresses(response()) == ["out"]
