"""When messages of streams were published: the first one from an instant on, without reading what they say.

The time of a message is the one that its publisher named, which stands in the headers as `{"ts":1700000000123}`, in
milliseconds, or else the timestamp of its event. Those of publishers are in no order, so nothing is to be had by halving:
one looks at each. Here are the statements for the journal; the lake's files are looked at in `spark_store.cold`.
"""

from __future__ import annotations

import sqlite3
from datetime import UTC, datetime, timedelta

from mappings.ids import EntityId
from spark_store.instants import as_text

TS = "ts"
"""What the time that a publisher named is called in the headers."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST = f"""
    SELECT revision FROM entries
    WHERE entity = (SELECT key FROM entities WHERE type = ? AND id = ?) AND revision BETWEEN ? AND ?
    AND CASE WHEN headers = CAST('{{}}' AS BLOB) THEN timestamp >= ?5
        ELSE coalesce(json_extract(CAST(headers AS TEXT), '$.{TS}') >= ?6, timestamp >= ?5) END
    ORDER BY revision LIMIT 1
"""


def first(connection: sqlite3.Connection, entity: EntityId, first: int, last: int, instant: int) -> int:
    """The first of these revisions whose message is not from before an instant, in milliseconds; 0 for none."""
    parameters = (entity.type.value, entity.id, first, last, as_timestamp(instant), instant)
    row = connection.execute(_FIRST, parameters).fetchone()
    return 0 if row is None else int(row[0])


def as_timestamp(instant: int) -> str:
    """Milliseconds since 1970 as events write times, or a text that is below or above all of them."""
    try:
        return as_text(_EPOCH + timedelta(milliseconds=instant))
    except OverflowError:
        return "" if instant < 0 else "A"
