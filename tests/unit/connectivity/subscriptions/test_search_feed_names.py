"""Things with names in many scripts: found, sorted and shown, by the index and by all things."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from spark_store.journal.journal import Journal
from tests.support.in_process.search_client import Searcher, has_thing
from tests.support.in_process.service import ConnectionHarness, source
from tests.support.random_names import KEYS, in_path

pytestmark = pytest.mark.usefixtures("harnesses")


@pytest.mark.parametrize("is_indexed", [False, True], ids=["all things", "index"])
async def test_a_thing_is_found_sorted_and_shown_by_any_name(is_indexed: bool, tmp_path: Path) -> None:
    journal = Journal.open(tmp_path / "journal.db") if is_indexed else None
    harness = ConnectionHarness(source(), journal=journal)
    for number, name in enumerate(KEYS):
        await has_thing(
            harness,
            f"lamp-{number}",
            {"attributes": {name: {"n": number}}, "features": {name: {"properties": {name: name}}}},
        )
    searcher = Searcher(harness)
    for number, name in enumerate(KEYS):
        path = in_path(name)
        filter = (
            f"and(exists(attributes/{path}),eq(features/{path}/properties/{path},{json.dumps(name)}),"
            f'like(features/*/properties/{path},"{name}"),exists(features/{path}))'
        )
        key = await searcher.subscribe(
            filter, f"sort(-attributes/{path}/n)", fields=f"thingId,attributes/{path}", namespaces=["acme.site"]
        )
        assert await searcher.request(key) == [
            [{"thingId": f"acme.site:lamp-{number}", "attributes": {name: {"n": number}}}]
        ]


async def test_two_normal_forms_are_two_names_and_two_values() -> None:
    composed, decomposed = "\u0439", "\u0438\u0306"
    harness = ConnectionHarness(source())
    for name, written in (("composed", composed), ("decomposed", decomposed)):
        thing: dict[str, Any] = {"attributes": {written: 1, "name": written}, "features": {written: {}}}
        await has_thing(harness, name, thing)
    searcher = Searcher(harness)
    for name, written in (("composed", composed), ("decomposed", decomposed)):
        for filter in (
            f"exists(attributes/{written})",
            f"exists(features/{written})",
            f"eq(attributes/name,'{written}')",
            f"like(attributes/name,'{written}*')",
            f"ilike(attributes/name,'{written}')",
        ):
            assert await searcher.all(filter) == [f"acme.site:{name}"], filter
    assert await searcher.all("like(attributes/name,'?')") == ["acme.site:composed"]
