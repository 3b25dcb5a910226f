"""How far the pipeline is: decided at the start from what journal, tables and watermark say, and kept while it runs."""

from __future__ import annotations

from typing import NamedTuple

from spark_store.errors import LakeUnfit
from spark_store.lake_check import refuse_hole


class Found(NamedTuple):
    """What there is at a start, as numbers of events; 0 for none.

    `oldest` and `newest` of the journal (`oldest` is None where nothing is left in it), the last one in `events`, the last
    one that `latest` says is merged into it (0, too, where it has columns that are not filled yet), and the published
    watermark.
    """

    oldest: int | None
    newest: int
    appended: int
    merged: int
    watermark: int


class Plan(NamedTuple):
    """The events whose states have to be merged before anything else (none if first > last), and where to go on."""

    first: int
    last: int


def plan(found: Found) -> Plan:
    """What to make up for. `last` is where the stream begins.

    Raises LakeUnfit where going on would lose events, or mix those of two journals.
    """
    if found.newest < found.appended:
        raise LakeUnfit(
            f"expected a journal that reaches to event {found.appended}, which the lake holds, found one that ends at "
            f"{found.newest}; restore the newer journal, or move the folder `lake` away for a new one"
        )
    oldest = found.newest + 1 if found.oldest is None else found.oldest
    refuse_hole(oldest, found.appended)
    merged = min(found.watermark, found.appended, found.merged)
    # Which entities a trimmed event has touched nobody knows any more: then all of them are merged.
    return Plan(merged + 1 if merged + 1 >= oldest or merged >= found.appended else 1, found.appended)
