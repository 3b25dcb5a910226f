"""The page about filters is correct: every example has the documented result."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from typing import Any

import pytest

from mappings.ids import EntityId, EntityType
from mappings.model.signals import Event
from spark_store.errors import RqlSyntaxError
from spark_store.history.event_view import partial_thing
from spark_store.rql import evaluate, parse, resolve_times
from tests.support.paths import ROOT
from tests.support.table import each_row

PAGE = (ROOT / "docs" / "reference" / "filters.md").read_text("utf-8").partition("## Filters of targets")[0]
BLOCKS = [json.loads(block) for block in re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)]
ROWS = re.findall(r"^\| `([a-zA-Z]+\(.*)` \| (.+) \|$", PAGE, re.MULTILINE)
MATCHES = [(filter, result) for filter, result in ROWS if re.fullmatch(r"none|[0-9, ]+", result)]
ERRORS = [row for row in ROWS if row not in MATCHES]

LAMP = EntityId(EntityType.THING, "acme.site", "lamp-7")
NOW = datetime(2030, 1, 15, 7, 40, tzinfo=UTC)


def event(shown: dict[str, Any]) -> Event:
    value = json.dumps(shown["value"]).encode() if "value" in shown else None
    return Event(LAMP, shown["revision"], shown["timestamp"], shown["action"], shown["path"], value, b"{}")


HISTORY = [event(shown) for shown in BLOCKS[0]]


def found(filter: str) -> list[int]:
    predicate = resolve_times(parse(filter), NOW)
    return [event.revision for event in HISTORY if evaluate(predicate, partial_thing(event))]


@each_row(("filter", "revisions"), MATCHES, ids=[filter for filter, _ in MATCHES])
def test_a_filter_finds_the_revisions_that_the_page_names(filter: str, revisions: str) -> None:
    assert found(filter) == [int(revision) for revision in re.findall(r"\d+", revisions)]


@pytest.mark.parametrize(("filter", "expected"), ERRORS, ids=[filter for filter, _ in ERRORS])
def test_every_filter_that_the_page_calls_invalid_is_refused(filter: str, expected: str) -> None:
    with pytest.raises(RqlSyntaxError) as caught:
        parse(filter)
    assert caught.value.expected.startswith(expected)


def test_the_subscribe_of_the_page_carries_a_filter_of_the_page() -> None:
    assert found(BLOCKS[1]["value"]["filter"]) == [2, 4]


def test_the_page_shows_the_event_view_that_a_filter_evaluates() -> None:
    assert partial_thing(HISTORY[1]) == BLOCKS[2]


def test_the_page_has_examples() -> None:
    assert len(MATCHES) > 35
    assert len(ERRORS) > 5
