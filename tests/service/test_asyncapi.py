"""The AsyncAPI documents of the example connections, read by the official parser."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from connectivity.management.asyncapi import asyncapi_document
from connectivity.management.files import load
from tests.support.asyncapi import errors_of
from tests.support.paths import ROOT
from tests.support.vectors.connections import base_document

pytestmark = pytest.mark.node

EXAMPLES = sorted((ROOT / "examples" / "connections").iterdir())


@pytest.fixture(scope="module")
def errors(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, list[str]]:
    """Return the parser's errors for each file's document, for one of all of them, and for a broken one."""
    folder = tmp_path_factory.mktemp("asyncapi")
    several = folder / "several.yaml"
    several.write_text(json.dumps([base_document(name) for name in ("shared", "kafka")]))
    made: dict[str, Path] = {}
    for file in (*EXAMPLES, several):
        document = asyncapi_document(load([file]).connections.values())
        made[file.name] = folder / f"{file.name}.json"
        made[file.name].write_text(json.dumps(document))
    document["operations"]["kafka"] = {"action": "listen"}
    made["broken"] = folder / "broken.json"
    made["broken"].write_text(json.dumps(document))
    found = errors_of(made.values())
    return {name: found[str(file)] for name, file in made.items()}


@pytest.mark.slow("the parser reads the specification's schemas, and 15 documents by them")
@pytest.mark.parametrize("name", [*(file.name for file in EXAMPLES), "several.yaml"])
def test_the_parser_accepts_the_document_of_a_connection_file(name: str, errors: Mapping[str, list[str]]) -> None:
    assert errors[name] == []


def test_the_parser_refuses_another_action(errors: Mapping[str, list[str]]) -> None:
    assert any("action" in each for each in errors["broken"])
