"""The JSON Schema of the settings file."""

from __future__ import annotations

from typing import Any

import jsonschema_rs
import pytest
import yaml

from connectivity.config.settings_schema import settings_schema
from tests.support.table import each_row

VALIDATOR = jsonschema_rs.validator_for(settings_schema())


@each_row(
    "text",
    [
        "{}",
        "journal: {retention: 7d, historical_headers: [a, b]}",
        "journal: {retention: forever, historical_headers: 'a, b'}",
        "lake: {retention: 30d}",
        "lake: {retention: {days: 30, revisions: 1000}}",
        "lake: {retention: {default: forever, acme.plant: {days: 0.5}}}",
        "lake: {retention: {days: ' +1.5e1 '}}",
        "lake: {retention: {days: '.05'}}",
        "lake: {retention: {}}",
        "lake: {retention: {days: 30d, acme: forever}}",
        "spark: {mode: off, memory: 1500m}",
        "limits: {payload: 512KiB}",
        "limits: {payload: ' .5 MiB '}",
        "api: {tokens: [{name: a, token: 0123456789abcdef, role: write, grants: ['acme:*']}]}",
        "quotas: [{namespaces: 'org.acme.*', things: 5, bytes: 1GiB}]",
    ],
)
def test_the_schema_accepts_usable_settings(text: str) -> None:
    assert [error.message for error in VALIDATOR.iter_errors(yaml.safe_load(text))] == []


@each_row(
    "text",
    [
        "conections_dir: a",
        "journal: {retention: 7 days}",
        "lake: {retention: {days: -1}}",
        "lake: {retention: {'acme:lamp': 1d}}",
        "lake: {retention: {days: 30, acme: forever}}",
        "lake: {retention: {revisions: ' 30 ', acme: forever}}",
        "lake: {retention: {days: abc}}",
        "limits: {payload: '1,048,576'}",
        "lake: {retention: {days: 30d}}",
        "lake: {retention: {days: '0.0'}}",
        "lake: {retention: {days: '-1'}}",
        "lake: {retention: {days: '1_0'}}",
        "lake: {retention: {days: inf, revisions: 5}}",
        "lake: {retention: {acme: {days: abc}}}",
        "spark: {mode: on}",
        "spark: {memory: 1 GB}",
        "api: {port: 70000}",
        "log: {level: loud}",
        "search: {workers: 0}",
    ],
)
def test_the_schema_refuses_other_settings(text: str) -> None:
    assert not VALIDATOR.is_valid(yaml.safe_load(text))


def fields(schema: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    return [(name, field) for model in schema["$defs"].values() for name, field in model.get("properties", {}).items()]


def test_every_setting_is_described() -> None:
    assert [name for name, field in fields(settings_schema()) if not field.get("description")] == []


@pytest.mark.parametrize(
    ("name", "default"), [("redelivery_window", "10m"), ("after_life", "10s"), ("retention", "7d")]
)
def test_defaults_are_written_as_in_the_file(name: str, default: str) -> None:
    assert default in {field.get("default") for known, field in fields(settings_schema()) if known == name}
