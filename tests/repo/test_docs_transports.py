"""The pages about connections and connection types: complete, with examples that are valid."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import trustme

from connectivity.config.documents import read_document
from connectivity.transports import load_connection_type
from connectivity.validation.limitations import notes
from connectivity.validation.validator import json_schema, parse
from tests.support.file_schema import complaints
from tests.support.in_process.websocket_listener import key_of
from tests.support.paths import ROOT
from tests.support.validation import validate
from tools.docs.connections import reference_page
from tools.docs.manual import manuals
from tools.docs.transports import broker_pages, example


def models(schema: dict[str, Any]) -> list[dict[str, Any]]:
    return [it for it in (schema, *schema["$defs"].values()) if "properties" in it]


def test_the_page_names_every_field() -> None:
    page = reference_page()
    for model in models(json_schema()):
        assert all(f"| `{name}` |" in page for name in model["properties"])


@pytest.mark.parametrize("name", manuals())
def test_every_connection_type_has_its_part_of_a_page(name: str) -> None:
    broker, manual = load_connection_type(name), manuals()[name]
    page = broker_pages()[manual.page]
    assert f"]({manual.page})" in reference_page()
    part = page.partition(f"## Type `{name}`\n")[2].partition("\n## ")[0]
    assert all(f"| `{option.alias}` |" in part for option in broker.options.model_fields.values())
    for section in ("Headers", "Acknowledgement", "Limits", "Examples"):
        assert f"### {section} of `{name}`\n" in part
    # MQTT 5 has the addresses of MQTT 3.1.1, on the same page.
    assert f"### Addresses of `{name.removesuffix('-5')}`\n" in page


def test_every_line_of_a_table_has_as_many_cells_as_its_head() -> None:
    for page in broker_pages().values():
        assert page.count("\n|") > 20
        widths: list[int] = []
        for line in page.splitlines():
            widths = [*widths, len(re.split(r"(?<!\\)\|", line))] if line.startswith("|") else []
            assert set(widths) <= {widths[0]} if widths else True, line


@pytest.mark.parametrize("name", manuals())
def test_the_example_that_a_page_names_is_of_its_type(name: str) -> None:
    read = read_document(ROOT / manuals()[name].example)
    assert (read.document["connectionType"], read.problems) == (name, [])


@pytest.mark.parametrize(("file", "page"), [("connections.md", reference_page()), *broker_pages().items()])
def test_the_page_in_the_repository_is_the_generated_one(file: str, page: str) -> None:
    assert (ROOT / "docs" / "reference" / file).read_text(encoding="utf-8").strip() == page.strip(), "run make docs"


@pytest.mark.parametrize("full", [False, True], ids=["short", "full"])
@pytest.mark.parametrize("name", manuals())
def test_the_examples_of_the_page_are_valid(name: str, full: bool, tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    own = authority.issue_cert("listener.acme.example")
    own.cert_chain_pems[0].write_to_path(str(tmp_path / "listener.crt"))
    (tmp_path / "listener.key").write_text(key_of(own))
    document = example(load_connection_type(name), manuals()[name], full=full)
    assert validate(document, environ={"BROKER_PASSWORD": "x"}, base=tmp_path) == []
    assert complaints(document) == []
    assert list(notes(parse(document, environ={"BROKER_PASSWORD": "x"}, base=tmp_path))) == []
