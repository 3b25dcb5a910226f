"""Unsupported parts of a document are refused or reported, never ignored in silence."""

from __future__ import annotations

from typing import Any

import pytest

from connectivity.connections.model import Connection
from connectivity.validation.limitations import caveats, ignored_parts, notes, refusal
from connectivity.validation.validator import parse
from tests.support.validation import validate

SOURCE = {"addresses": ["in"], "qos": 1, "authorizationContext": ["acme:x"]}
TUNNEL = {
    "enabled": True,
    "credentials": {"type": "plain", "username": "tunnel", "password": "x"},
    "validateHost": False,
    "uri": "ssh://bastion.acme.example:22",
}
CONDITIONAL = {"mappingEngine": "Ditto", "options": {}, "incomingConditions": {"never": "fn:delete()"}}
TARGET = {"address": "out", "topics": ["_/_/things/twin/events"], "qos": 1, "authorizationContext": ["acme:x"]}
ANNOUNCED = {**TARGET, "topics": ["_/_/policies/announcements"]}
LIVE = {**TARGET, "topics": ["_/_/things/live/messages"], "payloadMapping": ["Ditto"]}
MISSPELT = {**LIVE, "topics": ["_/_/things/live/messages?namespace=acme.site"]}


def document(source: dict[str, Any] | None = None, **more: Any) -> Connection:
    return parse(
        {
            "id": "site",
            "connectionType": "mqtt-5",
            "connectionStatus": "open",
            "uri": "tcp://127.0.0.1:1883",
            "sources": [{**SOURCE, **(source or {})}],
            **more,
        }
    )


def test_a_document_without_unsupported_parts_has_no_refusal_and_no_comment() -> None:
    assert refusal(document()) is None
    assert list(ignored_parts(document())) == []
    asking = {"acknowledgementRequests": {"includes": ["site:seen"]}}
    assert list(ignored_parts(document(asking, targets=[LIVE, TARGET, ANNOUNCED]))) == []


def test_a_pool_of_processors_has_no_effect() -> None:
    assert list(ignored_parts(document(processorPoolSize=1))) == []
    assert list(ignored_parts(document(processorPoolSize=5))) == [
        "processorPoolSize: a connection maps its payloads one after the other"
    ]


def test_a_tunnel_is_not_gone_around() -> None:
    assert "sshTunnel" in (refusal(document(sshTunnel=TUNNEL)) or "")
    assert refusal(document(sshTunnel={**TUNNEL, "enabled": False})) is None


def test_conditions_and_several_mappers_are_carried_out() -> None:
    used = document({"payloadMapping": ["sometimes", "Ditto"]}, mappingDefinitions={"sometimes": CONDITIONAL})
    assert refusal(used) is None
    assert list(ignored_parts(used)) == []


def test_an_unknown_parameter_is_reported_with_the_nearest_known_one() -> None:
    assert refusal(document(targets=[MISSPELT])) is None
    (message,) = ignored_parts(document(targets=[MISSPELT]))
    assert message == "targets[0].topics: the parameter namespace is unknown and ignored; did you mean namespaces?"


def notes_on(*topics: str) -> list[str]:
    return list(ignored_parts(document(targets=[{**TARGET, "topics": list(topics)}])))


def test_the_nearest_parameter_is_one_of_the_same_topic() -> None:
    known = "_/_/connections/announcements"
    (line,) = notes_on(known, "_/_/things/twin/events?filters=exists(attributes/on)")
    assert line == "targets[0].topics: the parameter filters is unknown and ignored; did you mean filter?"


def test_a_duplicate_parameter_is_reported() -> None:
    (line,) = notes_on("_/_/things/twin/events?filter=exists(attributes/on)&filter=exists(attributes/off)")
    assert line == "targets[0].topics: the parameter filter is repeated, and only the first one applies"


def test_a_namespace_that_nothing_can_be_in_is_reported() -> None:
    assert notes_on("_/_/things/twin/events?namespaces=acme.plant,acme-depot.east") == []
    (line,) = notes_on("_/_/things/twin/events?namespaces=acme.*,acme.plant")
    assert line == (
        "targets[0].topics: the namespace acme.* matches nothing, as a namespace is a whole name such as acme.plant"
    )


def test_8_13_8_24_the_status_of_a_connection_lists_its_limitations() -> None:
    assert list(caveats(document())) == []
    assert list(caveats(document({"qos": 2}))) == []
    unchecked = document(uri="ssl://broker.acme.example:8883", validateCertificates=False)
    assert list(caveats(unchecked)) == ["the broker's certificate is not checked"]
    assert list(caveats(document(validateCertificates=False))) == []


@pytest.mark.parametrize(
    "reply",
    [
        {},
        {"address": "{{ header:reply-to }}"},
        {"address": "{{header:reply-to | fn:lower()}}/answers"},
        {"address": "${ header:reply-to }"},
        {"address": "/${header.reply-to}"},
        {"address": "/{{ header:reply-to }}"},
        {"address": "answers", "headerMapping": {"mqtt.topic": "{{ header:reply-to }}"}},
    ],
)
def test_a_reply_target_whose_address_a_sender_chooses_is_noted_unless_it_has_a_pattern(reply: dict[str, Any]) -> None:
    (note,) = notes(document({"replyTarget": reply}))
    assert note.startswith("site: sources[0].replyTarget.address: senders choose where responses are published")
    limited = document({"replyTarget": {**reply, "addressPattern": "**"}})
    assert list(notes(limited)) == []


@pytest.mark.parametrize(
    "reply",
    [
        {"enabled": False},
        {"address": "answers/{{ header:reply-to }}"},
        {"address": "{{ thing:name }}/answers"},
        {"address": "{{ source:address | fn:replace('/up','/down') }}"},
    ],
)
def test_a_reply_target_with_a_beginning_of_the_operators_is_not_noted(reply: dict[str, Any]) -> None:
    assert list(notes(document({"replyTarget": reply}))) == []


def test_the_topic_of_mqtt_is_no_address_where_addresses_have_keys() -> None:
    reply = {"address": "answers/all", "headerMapping": {"mqtt.topic": "{{ header:reply-to }}"}}
    amqp = document({"replyTarget": reply}, connectionType="amqp-091", uri="amqp://127.0.0.1:5672")
    assert list(notes(amqp)) == []


def test_a_listener_publishes_to_its_peers_alone_and_is_not_noted() -> None:
    listener = document(
        connectionType="websocket", uri="ws://127.0.0.1:8765", sources=[{**SOURCE, "addresses": ["/in"]}]
    )
    assert list(notes(listener)) == []


@pytest.mark.parametrize(
    ("address", "pattern", "found", "expected"),
    [
        (
            "{{ header:reply-to }}",
            "clients/**/answers",
            "'**' must be the whole pattern, or its last part",
            "such as clients/*/answers",
        ),
        ("{{ header:reply-to }}", "clients/+/answers", '"+" in "clients/+/answers"', "* for one part"),
        ("{{ header:reply-to }}", "clients/#", '"#" in "clients/#"', "** for all remaining parts"),
        ("{{ header:reply-to }}", "{{ thing:name }}/*", '"{{" in', "* for one part"),
        ("answers", "clients/*", '"clients/*"', 'allows the address "answers"'),
    ],
)
def test_an_address_pattern_that_allows_nothing_clear_is_a_problem(
    address: str, pattern: str, found: str, expected: str
) -> None:
    source = {**SOURCE, "replyTarget": {"address": address, "addressPattern": pattern}}
    document = {"id": "site", "connectionType": "mqtt-5", "connectionStatus": "open", "uri": "tcp://127.0.0.1:1883"}
    (problem,) = validate({**document, "sources": [source]})
    assert problem.path == "sources[0].replyTarget.addressPattern"
    assert found in problem.found
    assert expected in problem.expected


@pytest.mark.parametrize("address", ["{{ header:reply-to }}", "${header:reply-to}", "${header.reply-to}/answers"])
def test_an_address_pattern_is_compared_with_addresses_without_placeholders_alone(address: str) -> None:
    document({"replyTarget": {"address": address, "addressPattern": "clients/*"}})


@pytest.mark.parametrize("address", ["{{ header:reply-to }}", "${header:reply-to}"])
def test_clients_of_a_session_protocol_cannot_name_their_address_in_a_header_without_headers(address: str) -> None:
    source = {**SOURCE, "payloadMapping": ["rsio"], "replyTarget": {"address": address}}
    rsio = {"rsio": {"mappingEngine": "ReactiveStreamsIo", "options": {}}}
    document = {"id": "site", "connectionType": "mqtt", "connectionStatus": "open", "uri": "tcp://127.0.0.1:1883"}
    (problem,) = validate({**document, "sources": [source], "mappingDefinitions": rsio})
    assert problem.path == "sources[0].replyTarget.address"
