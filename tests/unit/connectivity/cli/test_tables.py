"""Responses of the API as tables for people."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from connectivity.cli import tables
from mappings.texts import CONTROL_CHARACTERS
from tests.support.api.metrics_page import METRICS, STATUS
from tests.support.table import each_row

ODD: list[Any] = [
    None,
    1,
    "x",
    [],
    {},
    [None],
    [[]],
    {"connectionLogs": 1, "clientStatus": {}, "connectionMetrics": []},
]


def test_a_list_has_a_row_for_each_connection() -> None:
    api = {"id": "a", "connectionType": "mqtt", "connectionStatus": "open", "_owner": "api", "_problems": []}
    file = api | {"id": "b", "_owner": "file", "_file": "b.yaml", "_override": "closed", "_problems": ["uri: x", "y"]}
    first, second = tables.connections([api, 7, file])
    assert first == {"id": "a", "type": "mqtt", "wanted": "open", "owner": "api", "name": None, "problems": None}
    assert tables.connections([api]) == [{name: value for name, value in first.items() if name != "problems"}]
    assert (second["wanted"], second["owner"], second["problems"]) == ("closed", "b.yaml", "uri: x; y")


def test_a_status_is_a_row_and_one_for_each_resource() -> None:
    row = tables.live(STATUS)
    assert (row["id"], row["wanted"], row["is"], row["details"]) == (
        "depot",
        "open",
        "misconfigured",
        "bad credentials",
    )
    client, source = tables.resources(STATUS)
    assert (client["what"], client["is"]) == ("client", "misconfigured")
    assert (source["what"], source["address"], source["since"]) == ("source", "cmd", "T")


def test_the_details_of_a_connection_are_those_of_the_part_that_decides_its_status() -> None:
    up = {"type": "client", "status": "open", "statusDetails": "connected"}
    failed = {"type": "client", "status": "failed", "statusDetails": "timeout: no answer"}
    target = {"type": "target", "status": "misconfigured", "statusDetails": "missing address: queue 'a'"}
    for live, clients, targets, details in (
        ("open", [up, up], [], "connected"),
        ("failed", [up, failed], [target], "timeout: no answer"),
        ("misconfigured", [up], [target], "missing address: queue 'a'"),
    ):
        status = {"liveStatus": live, "clientStatus": clients, "targetStatus": targets}
        assert tables.live(status)["details"] == details


def test_counters_that_have_counted_nothing_are_left_out() -> None:
    inbound, responses = tables.metrics(METRICS)
    assert list(inbound.values()) == ["inbound", None, "consumed", "success", 3, 120, 800, "2026-02-03T10:01:07Z"]
    assert list(responses.values()) == ["target", "_responses", "published", "failure", None, None, 1, None]


@pytest.mark.parametrize(
    ("entry", "line"),
    [
        (
            {
                "timestamp": "T",
                "level": "success",
                "category": "source",
                "type": "consumed",
                "address": "cmd",
                "entityId": "a:b",
                "message": "Message was consumed.",
                "correlationId": "c-1",
            },
            ("T", "success", "source consumed cmd [a:b]: Message was consumed. (c-1)"),
        ),
        (
            {"category": "connection", "type": "other", "message": "up", "correlationId": "<not-provided>"},
            ("–", "–", "connection other: up"),
        ),
    ],
)
def test_a_log_entry_is_a_line(entry: dict[str, Any], line: tuple[str, str, str]) -> None:
    assert tables.entry(entry) == line


def test_entries_of_one_level() -> None:
    found = {"connectionLogs": [{"level": "success"}, {"level": "failure"}], "enabledSince": "T"}
    assert tables.of_level(found, None) == found
    assert tables.of_level(found, "failure") == {"connectionLogs": [{"level": "failure"}], "enabledSince": "T"}


def test_rows_have_the_names_of_all_of_them() -> None:
    assert tables.align_columns([{"a": 1}, {"b": 2}]) == [{"a": 1, "b": None}, {"a": None, "b": 2}]


def test_a_document_as_yaml_is_the_same_document() -> None:
    document = {
        "uri": "amqp://u:*****@h:1",
        "name": "ä: #",
        "script": "a\n  b\n",
        "n": 1,
        "t": "true",
        "long": "x " * 300,
    }
    text = tables.as_yaml(document)
    assert yaml.safe_load(text) == document
    assert list(yaml.safe_load(text)) == list(document)


@each_row("odd", ODD, ids=repr)
def test_an_answer_of_another_shape_shows_nothing_and_breaks_nothing(odd: Any) -> None:
    assert all(set(row.values()) == {None} for row in tables.connections(odd))
    assert set(tables.live(odd).values()) == {None}
    assert tables.resources(odd) == tables.metrics(odd) == []
    assert tables.of_level(odd, "success")["connectionLogs"] == []
    assert all(row == {} or row for row in tables.align_columns(odd))


@pytest.mark.parametrize("name", ["\u202eeman", "a\u2028b", "\x1b[31m", "a\x9bb"])
def test_yaml_has_no_characters_that_a_terminal_obeys(name: str) -> None:
    text = tables.as_yaml({"name": name, "ä": "ö"})
    assert CONTROL_CHARACTERS.search(text.replace("\n", "")) is None
    assert yaml.safe_load(text) == {"name": name, "ä": "ö"}


def test_yaml_keeps_other_characters() -> None:
    assert tables.as_yaml({"name": "Zähler"}) == "name: Zähler\n"
