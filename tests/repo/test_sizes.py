"""The bytes on the wire in docs/internals/measurements-messages.md are those of the formats."""

from __future__ import annotations

from tests.bench.sizes import rows, table
from tests.support.paths import ROOT

PAGE = ROOT / "docs" / "internals" / "measurements-messages.md"


def test_the_table_of_bytes_is_the_computed_one() -> None:
    assert table() in PAGE.read_text(encoding="utf-8")


def test_each_thing_takes_less_than_as_json() -> None:
    assert all(row.rsio < row.ditto for row in rows() if row.ditto is not None)
