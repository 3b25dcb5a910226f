"""Diagrams and tables of the documentation that show the code are those of the code."""

from __future__ import annotations

import re

from connectivity.connections.lifecycle import TABLE
from tests.support.paths import ROOT

DOCS = ROOT / "docs"


def text(page: str) -> str:
    return (DOCS / page).read_text(encoding="utf-8")


def test_the_diagram_of_connection_states_has_every_transition() -> None:
    arrows = re.findall(r"^    (\w+) --> (\w+): (.+)$", text("reference/monitoring.md"), re.MULTILINE)
    shown = {(before, event, after) for before, after, events in arrows for event in events.split(", ")}
    assert shown == {
        (before.name, event.value, after.name)
        for before, row in TABLE.items()
        for event, after in row.items()
        # The diagram leaves out that the end of a link is reported in any state.
        if before is not after and (event.value != "closed" or before.name == "CLOSING")
    }


def test_the_page_on_architecture_names_every_folder() -> None:
    page = text("explanation/architecture.md")
    for package in ("connectivity", "mappings", "spark_store"):
        _, _, table = page.partition(f"\n| `{package}/` |")
        rows = re.findall(r"^\| (`.+?`) \|", table.partition("\n\n")[0], re.MULTILINE)
        named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
        assert named == {folder.parent.name for folder in (ROOT / package).glob("*/__init__.py")}, package


def test_the_glossary_has_at_most_forty_terms_in_order() -> None:
    terms = re.findall(r"^\| (\w.+?) \|", text("reference/glossary.md"), re.MULTILINE)[1:]
    assert 30 < len(terms) <= 40
    assert terms == sorted(terms, key=str.lower)
