"""The message interface of connections as AsyncAPI documents."""

from __future__ import annotations

from typing import Any

import pytest

from connectivity import __version__
from connectivity.management.asyncapi import asyncapi_document
from connectivity.validation.validator import parse
from tests.support.connection_documents import example
from tests.support.vectors.connections import base_document


def of(*documents: dict[str, Any]) -> dict[str, Any]:
    return asyncapi_document([parse(document, environ={}) for document in documents])


def mqtt(**source: Any) -> dict[str, Any]:
    return {
        "id": "site",
        "connectionType": "mqtt",
        "connectionStatus": "open",
        "uri": "ssl://lamp:s3cr3t@broker.acme.example:8883",
        "sources": [{"addresses": ["site/+/up/#"], "qos": 1, "authorizationContext": ["acme:site"], **source}],
    }


def test_a_connection_is_a_server_without_its_secrets() -> None:
    document = of(mqtt())
    assert document["asyncapi"] == "3.0.0"
    assert document["info"]["version"] == __version__
    assert document["servers"] == {
        "site": {
            "host": "broker.acme.example:8883",
            "protocol": "secure-mqtt",
            "protocolVersion": "3.1.1",
            "description": "site",
            "security": [{"type": "userPassword"}],
        }
    }
    assert "s3cr3t" not in str(document)


def test_connections_with_similar_ids_are_servers_of_their_own() -> None:
    ids = ("depot-7", "depot_7", "depot:7")
    document = of(*({**mqtt(), "id": connection_id} for connection_id in ids))
    assert [server["description"] for server in document["servers"].values()] == list(ids)
    assert len(document["operations"]) == len(ids)


def test_a_wildcard_of_a_source_is_a_parameter_of_its_channel() -> None:
    channel = of(mqtt())["channels"]["site-source-0-address-0"]
    assert channel["address"] == "site/{level-1}/up/{level-2}"
    assert [it["description"] for it in channel["parameters"].values()] == [
        "One level of the topic.",
        "The remaining levels of the topic.",
    ]


def test_a_source_receives_with_its_quality_of_service() -> None:
    operation = of(mqtt(qos=2))["operations"]["site-source-0-address-0-receive"]
    assert (operation["action"], operation["bindings"]["mqtt"]["qos"]) == ("receive", 2)
    assert operation["channel"] == {"$ref": "#/channels/site-source-0-address-0"}


def test_a_reply_goes_to_the_reply_address_of_the_message() -> None:
    """MQTT 3.1.1 has no headers: it is the Ditto message that holds the address."""
    document = of(mqtt())
    reply = document["operations"]["site-source-0-address-0-receive"]["reply"]
    assert reply["address"] == {"location": "$message.payload#/headers/reply-to"}
    assert document["channels"]["site-source-0-reply"]["address"] is None
    rabbit = of(base_document("shared"))
    reply = rabbit["operations"]["depot-7-rabbit-source-0-address-0-receive"]["reply"]
    assert reply["address"] == {"location": "$message.header#/reply-to"}
    older = of(mqtt(replyTarget={"address": "${header:reply-to}"}))
    assert older["channels"]["site-source-0-reply"]["address"] is None


def test_a_reply_target_of_its_own_is_a_channel_with_parameters() -> None:
    address = "site/{{ thing:name }}/{{ thing:name | fn:upper() }}/{{ thing:name }}"
    channel = of(mqtt(replyTarget={"address": address}))["channels"]["site-source-0-reply"]
    assert channel["address"] == "site/{thing-name}/{thing-name-2}/{thing-name}"
    assert channel["parameters"]["thing-name-2"]["description"] == "The value of `{{ thing:name | fn:upper() }}`."


def test_replies_are_those_that_the_reply_target_expects() -> None:
    reply = {"address": "site/down", "expectedResponseTypes": ["nack"]}
    assert set(of(mqtt(replyTarget=reply))["channels"]["site-source-0-reply"]["messages"]) == {
        "Ditto-nack",
        "Ditto-event",
    }
    off = of(mqtt(replyTarget={"enabled": False}))
    assert "reply" not in off["operations"]["site-source-0-address-0-receive"]
    assert list(off["channels"]) == ["site-source-0-address-0"]


def test_a_peer_of_a_listener_is_answered_where_it_asked() -> None:
    document = of(example("websocket-listener"))
    reply = document["operations"]["websocket-listener-source-0-address-0-receive"]["reply"]
    assert reply["channel"] == {"$ref": "#/channels/websocket-listener-source-0-address-0"}
    assert "address" not in reply


def test_a_target_sends_a_message_for_each_topic() -> None:
    document = of(example("alarms"))
    assert document["channels"]["alarms-target-0"]["address"] == "alarms/{thing-name}/{feature-id}"
    assert document["operations"]["alarms-target-0-send"]["action"] == "send"
    (message,) = document["channels"]["alarms-target-0"]["messages"].values()
    assert message["payload"]["allOf"][0] == {"$ref": "#/components/schemas/Ditto"}
    assert message["payload"]["allOf"][1]["properties"]["topic"]["pattern"] == "^[^/]+/[^/]+/things/twin/events"
    assert set(message["headers"]["properties"]) == {"site", "severity"}


def test_topics_that_differ_only_in_signs_are_separate_messages() -> None:
    topics = [f"_/_/things/twin/events?filter=gt(attributes/load,{load})" for load in ("1", "-1")]
    target = {"address": "out", "topics": topics, "qos": 1, "authorizationContext": ["acme:x"]}
    document = of({**mqtt(), "targets": [target]})
    messages = document["channels"]["site-target-0"]["messages"]
    assert [each["summary"] for each in messages.values()] == [f"Signals of the topic `{it}`." for it in topics]
    assert len(document["operations"]["site-target-0-send"]["messages"]) == 2


def test_the_schema_of_a_ditto_message_describes_its_members() -> None:
    schema = of(mqtt())["components"]["schemas"]["Ditto"]
    assert {"topic", "headers", "path", "value", "status", "revision"} <= set(schema["properties"])
    assert all(member["description"] for member in schema["properties"].values())


def test_several_connections_are_several_servers() -> None:
    document = of(base_document("shared"), base_document("kafka"), mqtt())
    assert [server["protocol"] for server in document["servers"].values()] == ["amqp", "kafka-secure", "secure-mqtt"]


@pytest.mark.parametrize(
    "name", ["alarms", "back-end", "devices", "onboarding", "readers", "streams", "tcp-listener", "websocket-listener"]
)
def test_every_reference_leads_somewhere(name: str) -> None:
    document = of(example(name))
    for reference in references(document):
        found: Any = document
        for step in reference.removeprefix("#/").split("/"):
            found = found[step]
        assert found


def references(value: Any) -> list[str]:
    if isinstance(value, list):
        return [found for each in value for found in references(each)]
    if not isinstance(value, dict):
        return []
    own = [value["$ref"]] if isinstance(value.get("$ref"), str) else []
    return own + [found for each in value.values() for found in references(each)]
