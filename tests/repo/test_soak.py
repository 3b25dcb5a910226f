"""The long series: every test that was moved there belongs to a shard that exists."""

from __future__ import annotations

import re

from tests.soak.__main__ import SHARDS
from tests.support.paths import ROOT

MARK = re.compile(r"pytest\.mark\.soak\b(?:\(shard=\"([\w-]+)\"\))?")


def test_every_soak_mark_names_a_shard_that_make_soak_runs() -> None:
    found = {
        (str(file.relative_to(ROOT)), mark.group(1))
        for file in (ROOT / "tests").rglob("*.py")
        for mark in MARK.finditer(file.read_text(encoding="utf-8"))
        if file.name != "test_soak.py"
    }
    assert {shard for _, shard in found} == SHARDS.keys(), sorted(it for it in found if it[1] not in SHARDS)
