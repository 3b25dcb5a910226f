"""Where a pipeline goes on, from what it finds."""

from __future__ import annotations

import pytest

from spark_store.errors import LakeUnfit
from spark_store.pipeline.progress import Found, Plan, plan


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (Found(None, 0, 0, 0, is_latest_new=True), Plan(1, 0)),
        (Found(1, 500, 0, 0, is_latest_new=True), Plan(1, 0)),
        (Found(1, 500, 300, 300, is_latest_new=False), Plan(301, 300)),
        # Killed between append and merge, or before the watermark.
        (Found(1, 500, 300, 200, is_latest_new=False), Plan(201, 300)),
        # The watermark was lost: everything is merged again.
        (Found(1, 500, 300, 0, is_latest_new=False), Plan(1, 300)),
        # `latest` was lost.
        (Found(1, 500, 300, 300, is_latest_new=True), Plan(1, 300)),
        # `events` was lost, and the journal still has everything.
        (Found(1, 500, 0, 300, is_latest_new=False), Plan(1, 0)),
        # The journal was trimmed, up to what the lake has, or altogether.
        (Found(201, 500, 200, 200, is_latest_new=False), Plan(201, 200)),
        (Found(None, 500, 500, 500, is_latest_new=False), Plan(501, 500)),
        # … and the watermark is an old one: what it touched nobody knows, so all entities are merged.
        (Found(201, 500, 300, 100, is_latest_new=False), Plan(1, 300)),
        (Found(201, 500, 300, 200, is_latest_new=False), Plan(201, 300)),
        (Found(None, 500, 500, 100, is_latest_new=False), Plan(1, 500)),
    ],
)
def test_a_pipeline_goes_on_where_the_tables_end(found: Found, expected: Plan) -> None:
    assert plan(found) == expected


def test_a_journal_that_ends_before_the_lake_is_refused() -> None:
    with pytest.raises(LakeUnfit, match=r"reaches to event 300.* ends at 200"):
        plan(Found(1, 200, 300, 300, is_latest_new=False))


@pytest.mark.parametrize("oldest", [302, None])
def test_a_lake_that_lacks_what_the_journal_has_trimmed_is_refused(oldest: int | None) -> None:
    with pytest.raises(LakeUnfit, match="found none after 300"):
        plan(Found(oldest, 500, 300, 300, is_latest_new=False))
