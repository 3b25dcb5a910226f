"""Statistics of tables that an earlier version has written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from spark_store.lake.reader import has_cut_statistics
from spark_store.lake.tables import EVENTS, Lake
from tests.support.lake.tables import fill


@pytest.mark.parametrize(
    ("greatest", "is_cut"), [("acme:lamp", False), ("a" * 32 + "\x7f", True), ("é\U0010ffff", True)]
)
def test_an_id_that_is_cut_is_found_by_its_end(greatest: str, is_cut: bool, tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    fill(lake, 1, 2)
    commit = Path(lake.path(EVENTS), "_delta_log", f"{0:020}.json")
    actions = [json.loads(line) for line in commit.read_text(encoding="utf-8").splitlines()]
    for added in (action["add"] for action in actions if "add" in action):
        statistics = json.loads(added["stats"])
        statistics["maxValues"]["entity"] = greatest
        added["stats"] = json.dumps(statistics, ensure_ascii=False)
    commit.write_text("\n".join(json.dumps(it, ensure_ascii=False) for it in actions), encoding="utf-8")
    assert has_cut_statistics(lake, EVENTS) is is_cut
