"""Reading the lake without Spark."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import CommitProperties, Transaction, write_deltalake

from spark_store import lake
from spark_store.errors import StoreUnavailable
from spark_store.tables import EVENTS, Lake


def write(place: Lake, first: int, last: int) -> None:
    numbers = pa.array(range(first, last + 1), pa.int64())
    properties = CommitProperties(app_transactions=[Transaction("journal", last)])
    write_deltalake(place.path(EVENTS), pa.table({"seq": numbers}), mode="append", commit_properties=properties)


def test_a_table_knows_its_last_transaction_its_rows_and_its_size(tmp_path: Path) -> None:
    place = Lake(tmp_path)
    write(place, 1, 5)
    write(place, 6, 9)
    assert (lake.last_transaction(place, EVENTS, "journal"), lake.last_transaction(place, EVENTS, "other")) == (9, 0)
    assert (lake.event(place, 7), lake.event(place, 10)) == ({"seq": 7}, None)
    assert lake.size(place, EVENTS).files == 2
    assert lake.size(place, EVENTS).bytes > 0


def test_a_table_that_is_not_there_is_unavailable(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match="expected a Delta table that can be read"):
        lake.last_transaction(Lake(tmp_path), EVENTS, "journal")
