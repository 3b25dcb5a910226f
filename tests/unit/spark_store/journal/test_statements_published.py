"""When messages were published, as the journal's statement sees it."""

from __future__ import annotations

from pathlib import Path

import pytest

from mappings.ids import EntityId
from spark_store.journal import statements
from spark_store.journal.journal import Journal
from spark_store.journal.statements import as_timestamp
from tests.support.journal_entries import LAMP, TANK, change, published, timestamp


@pytest.mark.parametrize(
    ("instant", "text"),
    [
        (1_700_000_000_123, "2023-11-14T22:13:20.123000Z"),
        (0, "1970-01-01T00:00:00.000000Z"),
        (-1, "1969-12-31T23:59:59.999000Z"),
        (-(10**16), ""),
        (10**16, "A"),
    ],
)
def test_an_instant_is_written_as_events_write_times(instant: int, text: str) -> None:
    assert as_timestamp(instant) == text
    assert as_timestamp(-(10**16)) < as_timestamp(0) < as_timestamp(10**16)


def first_published(journal: Journal, entity: EntityId, first: int, last: int, instant: int) -> int:
    return journal.read_in_worker(lambda it: statements.first(it, entity, first, last, instant))


def test_large_messages_other_headers_and_other_entities_do_not_matter(tmp_path: Path) -> None:
    """If the publisher gave no time, the time of the service applies, for any other headers."""
    journal = Journal.open(tmp_path / "journal.db")
    large = b'"%b"' % (b"x" * 100_000)
    journal.append(
        [
            change(LAMP, 1),
            published(TANK, 1, large, b'{"ts":5}'),
            published(TANK, 2, headers=b'{"source":"s"}'),
            published(TANK, 3, large, b'{"ts":7,"source":"s"}'),
        ]
    )
    second = 1_894_665_600_000 + 2250
    assert as_timestamp(second) == timestamp(2)
    assert [first_published(journal, TANK, 1, 3, instant) for instant in (5, 6, second, second + 1)] == [1, 2, 2, 0]
    assert [first_published(journal, TANK, *bounds, 7) for bounds in ((3, 3), (1, 1), (3, 1))] == [3, 0, 0]
    assert first_published(journal, LAMP, 2, 9, 0) == 0
    journal.close()
