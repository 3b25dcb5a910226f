"""`check-jsonschema` validates the examples with the published JSON Schemas that they name."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT

EXAMPLES = ROOT / "examples"
CONNECTIONS = [file for folder in ("connections", "compose") for file in sorted((EXAMPLES / folder).iterdir())]
SETTINGS = EXAMPLES / "settings.yaml"
CONNECTION_SCHEMA = ROOT / "docs" / "reference" / "connection.schema.json"
SETTINGS_SCHEMA = ROOT / "docs" / "reference" / "settings.schema.json"

_LINE = re.compile(r"# yaml-language-server: \$schema=(\S+)")


def check(schema: Path, *files: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [Path(sys.executable).with_name("check-jsonschema"), "--schemafile", schema, *files],
        env={**os.environ, "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("schema", "files"),
    [(CONNECTION_SCHEMA, CONNECTIONS), (SETTINGS_SCHEMA, [SETTINGS])],
    ids=["connections", "settings"],
)
def test_the_examples_are_valid_by_the_published_schema(schema: Path, files: list[Path]) -> None:
    assert files
    result = check(schema, *files)
    assert result.returncode == 0, result.stdout + result.stderr


def test_the_published_schemas_are_json_schemas() -> None:
    for schema in (CONNECTION_SCHEMA, SETTINGS_SCHEMA):
        result = subprocess.run(
            [Path(sys.executable).with_name("check-jsonschema"), "--check-metaschema", schema],
            capture_output=True,
            text=True,
            check=False,
        )
        assert result.returncode == 0, result.stdout + result.stderr


def test_a_mistake_in_an_example_is_found(tmp_path: Path) -> None:
    text = (EXAMPLES / "connections" / "application.yaml").read_text(encoding="utf-8")
    for number, (right, wrong) in enumerate([("tcp://", "amqp://"), ("qos: 1", "qos: 3"), (":1883", "")]):
        file = tmp_path / f"{number}.yaml"
        file.write_text(text.replace(right, wrong), encoding="utf-8")
        result = check(CONNECTION_SCHEMA, file)
        assert (result.returncode, file.name in result.stdout) == (1, True)


@pytest.mark.parametrize(
    "file",
    [SETTINGS, *(it for it in CONNECTIONS if it.suffix == ".yaml")],
    ids=lambda file: f"{file.parent.name}/{file.name}",
)
def test_an_example_in_yaml_names_its_schema_for_editors(file: Path) -> None:
    line = _LINE.fullmatch(file.read_text(encoding="utf-8").splitlines()[0])
    assert line is not None
    expected = SETTINGS_SCHEMA if file == SETTINGS else CONNECTION_SCHEMA
    assert (file.parent / line[1]).resolve() == expected
