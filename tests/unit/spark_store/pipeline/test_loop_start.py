"""The position at which a pipeline continues, for each state of journal and lake."""

from __future__ import annotations

from typing import TypeAlias

import pytest

from spark_store.errors import LakeUnfit
from spark_store.pipeline.loop import first_unmerged
from tests.support.table import each_row

Found: TypeAlias = tuple[int, int, int, int, int]


def found(oldest: int, newest: int, appended: int = 0, merged: int = 0, watermark: int = 0) -> Found:
    return oldest, newest, appended, merged, watermark


@each_row(
    ("it", "expected"),
    [
        (found(1, 0), 1),
        (found(1, 500), 1),
        (found(1, 500, appended=300, merged=300, watermark=300), 301),
        # Killed between append and merge, between merge and append, or before the watermark.
        (found(1, 500, appended=300, merged=200, watermark=200), 201),
        (found(1, 500, appended=200, merged=300, watermark=200), 201),
        (found(1, 500, appended=300, merged=300, watermark=200), 201),
        # The watermark was lost: everything is merged again.
        (found(1, 500, appended=300, merged=300, watermark=0), 1),
        # `latest` was lost.
        (found(1, 500, appended=300, merged=0, watermark=300), 1),
        # … or was put back as it once was.
        (found(1, 500, appended=300, merged=120, watermark=300), 121),
        # `events` was lost, and the journal still has everything.
        (found(1, 500, appended=0, merged=300, watermark=300), 1),
        # The journal was trimmed, up to what the lake has, or altogether.
        (found(201, 500, appended=200, merged=200, watermark=200), 201),
        (found(501, 500, appended=500, merged=500, watermark=500), 501),
        # … and the watermark, or `latest`, is an old one: its entities are unknown, so all entities are merged.
        (found(201, 500, appended=300, merged=300, watermark=100), 1),
        (found(201, 500, appended=300, merged=300, watermark=200), 201),
        (found(501, 500, appended=500, merged=500, watermark=100), 1),
        (found(201, 500, appended=300, merged=100, watermark=300), 1),
    ],
)
def test_a_pipeline_continues_where_the_tables_end(it: Found, expected: int) -> None:
    assert first_unmerged(*it) == expected


def test_a_journal_that_ends_before_the_lake_is_refused() -> None:
    with pytest.raises(LakeUnfit, match=r"has events up to 300, .* up to 200"):
        first_unmerged(*found(1, 200, appended=300, merged=300, watermark=300))


@pytest.mark.parametrize("oldest", [302, 501])
def test_a_lake_without_the_trimmed_events_is_refused(oldest: int) -> None:
    with pytest.raises(LakeUnfit, match="the lake ends at event 300"):
        first_unmerged(*found(oldest, 500, appended=300, merged=300, watermark=300))
