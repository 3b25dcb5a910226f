"""Validation of MQTT documents: the paths of the wrong fields."""

from __future__ import annotations

from typing import Any

import pytest

from connectivity.connections.model import Connection
from connectivity.transports import load_connection_type
from tests.support.file_schema import complaints

SOURCE: dict[str, Any] = {"addresses": ["lab/+/in"], "qos": 1, "authorizationContext": ["lab:all"]}
TARGET: dict[str, Any] = {
    "address": "lab/{{ thing:name }}/out",
    "qos": 0,
    "topics": ["_/_/things/twin/events"],
    "authorizationContext": ["lab:all"],
}
MQTT, MQTT_5 = "mqtt", "mqtt-5"
BOTH = [MQTT, MQTT_5]


def problem_paths(
    kind: str, source: dict[str, Any] | None = None, target: dict[str, Any] | None = None, **members: Any
) -> list[str]:
    """The paths of all problems of a sound document with these changes."""
    document = {
        "id": "lab",
        "connectionType": kind,
        "connectionStatus": "open",
        "uri": "tcp://localhost:1883",
        "sources": [SOURCE | (source or {})],
        "targets": [TARGET | (target or {})],
        **members,
    }
    problems = load_connection_type(kind).check(Connection.model_validate(document))
    assert problems or complaints(document) == []
    assert all(problem.found and problem.expected for problem in problems)
    return [problem.path for problem in problems]


@pytest.mark.parametrize("kind", BOTH)
def test_a_sound_document_has_no_problems(kind: str) -> None:
    assert problem_paths(kind) == []


@pytest.mark.parametrize("kind", BOTH)
def test_qos_is_needed(kind: str) -> None:
    assert problem_paths(kind, {"qos": None}, {"qos": None}) == ["sources[0].qos", "targets[0].qos"]


@pytest.mark.parametrize("kind", BOTH)
def test_source_addresses_are_topic_filters(kind: str) -> None:
    addresses = ["fine/#", "a/#/b", "{{ header:x }}", "x+"]
    assert sorted(problem_paths(kind, {"addresses": addresses})) == [
        f"sources[0].addresses[{index}]" for index in (1, 2, 3)
    ]


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize("address", ["lab/#", "lab/+/{{ thing:name }}", "lab\x00"])
def test_target_addresses_are_topics_without_wildcards(kind: str, address: str) -> None:
    assert problem_paths(kind, target={"address": address}) == ["targets[0].address"]


def test_reply_addresses_are_checked_with_mqtt_3_1_1_only() -> None:
    source = {"replyTarget": {"address": "replies/#"}}
    assert problem_paths(MQTT, source) == ["sources[0].replyTarget.address"]
    assert problem_paths(MQTT_5, source) == []


def test_mqtt_3_1_1_has_one_client_with_one_consumer() -> None:
    assert problem_paths(MQTT, {"consumerCount": 2}, clientCount=2) == ["clientCount", "sources[0].consumerCount"]
    assert problem_paths(MQTT_5, {"consumerCount": 2}, clientCount=2) == []


def test_case_22_a_source_of_mqtt_3_1_1_maps_only_its_existing_headers() -> None:
    mapping = {
        "a": "{{ header:mqtt.topic | fn:upper() }}",
        "b": "constant",
        "c": "{{ header:device }}",
        "d": "{{ thing:id }}",
    }
    assert problem_paths(MQTT, {"headerMapping": mapping}) == [
        "sources[0].headerMapping.c",
        "sources[0].headerMapping.d",
    ]
    assert problem_paths(MQTT_5, {"headerMapping": mapping}) == []


def test_reply_targets_and_targets_of_mqtt_3_1_1_set_only_supported_headers() -> None:
    """Constants are fine, and so is any header of the signal."""
    mapping = {"mqtt.qos": "1", "mqtt.topic": "{{ header:reply-to }}", "mqtt.retain": "{{ thing:id }}", "x": "y"}
    found = problem_paths(MQTT, {"replyTarget": {"address": "r", "headerMapping": mapping}}, {"headerMapping": mapping})
    places = ("sources[0].replyTarget", "targets[0]")
    assert found == [f"{place}.headerMapping{name}" for place in places for name in ('["mqtt.retain"]', ".x")]
    assert (
        problem_paths(MQTT_5, {"replyTarget": {"address": "r", "headerMapping": mapping}}, {"headerMapping": mapping})
        == []
    )


def test_the_default_mappings_are_no_problem() -> None:
    assert problem_paths(MQTT, {"replyTarget": {"enabled": True}}) == []


def test_enforcement_identifies_a_sender_by_fields_of_the_incoming_message() -> None:
    by_topic = {"enforcement": {"input": "{{ source:address }}", "filters": ["{{ thing:id }}"]}}
    by_header = {"enforcement": {"input": "{{ header:device }}", "filters": ["{{ thing:id }}"]}}
    assert (problem_paths(MQTT, by_topic), problem_paths(MQTT_5, by_topic), problem_paths(MQTT_5, by_header)) == (
        [],
        [],
        [],
    )
    assert problem_paths(MQTT, by_header) == ["sources[0].enforcement.input"]


def test_an_empty_client_id_keeps_no_session() -> None:
    for broker in (MQTT, MQTT_5):
        assert problem_paths(broker, specificConfig={"clientId": ""}) == ["specificConfig.clientId"]
        assert problem_paths(broker, specificConfig={"clientId": "", "cleanSession": "true"}) == []
