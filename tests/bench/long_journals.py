"""Creates journals with a long history, in which the events of the entities alternate.

They are written with the journal's own functions, many events in a commit, so that the pipeline can read them. Very long
ones are written with SQL, which gives the same rows in a fraction of the time.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from mappings.ids import EntityId, EntityType
from mappings.model.signals import Event
from spark_store.journal.journal import Journal
from spark_store.records import Change, Snapshot
from tests.bench.harness import STAMP, SUBJECT, policy, thing
from tests.support.connection_documents import policy_for
from tests.support.replayed import fold

EVENTS_EACH = 1_000
"""The number of events of each entity."""

COMMIT = 5_000
PATH = "/features/sensor/properties/reading"
BEGUN = datetime(2030, 1, 15, 7, 30, tzinfo=UTC)


def write_past(path: Path, events: int, first: int = 0, each: int = EVENTS_EACH) -> int:
    """Write `events` events, numbered from `first`, and return the number of entities."""
    path.parent.mkdir(parents=True, exist_ok=True)
    entities = max(1, events // each)
    journal = Journal.open(path)
    try:
        for start in range(first, first + events, COMMIT):
            journal.append(list(changes(start, min(COMMIT, first + events - start), entities)))
    finally:
        journal.close()
    return entities


_READING = """
    json_object('celsius', (number * 7919 % 100003) / 1000.0, 'n', number,
                'note', printf('%08x', number * 2654435761 % 4294967296))
"""
_STAMP = "strftime('%Y-%m-%dT%H:%M:%S', :begun + number / 100, 'unixepoch') || printf('.%06dZ', number % 100 * 10000)"
_THING = f"""
    json_object('thingId', id, 'policyId', id, 'attributes', json_object('maker', 'acme'),
                'features', json_object('sensor', json_object('properties', json_object('reading', {_READING}))))
"""
_COUNTED = "WITH RECURSIVE counted(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM counted WHERE n + 1 < {})"


def write_long_past(path: Path, events: int) -> None:
    """Like `write_past` for a new journal, but with SQL and without waiting for the disk."""
    write_past(path, 0)
    given = {
        "entities": events // EVENTS_EACH,
        "events": events,
        "begun": int(BEGUN.timestamp()),
        "created": _stamp(0),
    }
    with sqlite3.connect(path, isolation_level=None) as connection:
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute("DROP INDEX entries_by_seq")
        for statement in (
            f"""{_COUNTED.format(":entities")}
            INSERT INTO entities (key, type, id, revision, created, modified, state, policy, newest_seq)
            SELECT n + 1, 'thing', id, {EVENTS_EACH}, :created, {_STAMP},
                   CAST({_THING} AS BLOB), id, number + 1
            FROM (SELECT n, 'acme.bench:device-' || n AS id, :events - :entities + n AS number FROM counted)""",
            f"""{_COUNTED.format(EVENTS_EACH)}
            INSERT INTO entries (entity, revision, seq, timestamp, action, path, value, headers)
            SELECT key, n + 1, number + 1, {_STAMP},
                   CASE n WHEN 0 THEN 'created' ELSE 'modified' END, CASE n WHEN 0 THEN '/' ELSE '{PATH}' END,
                   CAST(CASE n WHEN 0 THEN {_THING} ELSE {_READING} END AS BLOB), CAST('{{}}' AS BLOB)
            FROM (SELECT key, id, n, n * :entities + key - 1 AS number FROM entities CROSS JOIN counted)""",
            "CREATE UNIQUE INDEX entries_by_seq ON entries (seq)",
            "INSERT INTO counters VALUES ('seq', :events) ON CONFLICT (name) DO UPDATE SET value = excluded.value",
        ):
            names = {name: value for name, value in given.items() if f":{name}" in statement}
            connection.execute(statement, names)
    connection.close()


@dataclass(frozen=True, slots=True)
class Things:
    """Things that share a policy: their number, the length of their states, the beginning of their names.

    A state has `filler` characters besides the changing ones; the first `noise` of them are random.
    """

    count: int
    filler: int = 0
    noise: int = 40
    prefix: str = "device-"

    def thing(self, number: int) -> EntityId:
        return EntityId(EntityType.THING, "acme.bench", f"{self.prefix}{number}")

    def newest(self, revision: int) -> int:
        """Return the journal's last event number when all things have this revision.

        The first event is the policy.
        """
        return self.count * revision + 1


VALUE_PATH = "/features/sensor/properties/celsius"
_VALUE = "(number * 7919 % 100003) / 1000.0"
_VALUE_STAMP = (
    "strftime('%Y-%m-%dT%H:%M:%S', :begun + number / 1000, 'unixepoch') || printf('.%03d000Z', number % 1000)"
)
_FILLED_THING = f"""
    json_object('thingId', id, 'policyId', :policy, 'attributes',
                json_object('room', 'r' || (key % 500),
                            'filler', substr(hex(randomblob((:noise + 1) / 2)) || :filler, 1, length(:filler))),
                'features', json_object('sensor', json_object('properties', json_object('celsius', {_VALUE}))))
"""


def write_policy(path: Path) -> None:
    """Create a journal with the policy that `Things` share."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rules = {"policyId": str(policy(0)), "imports": {}, **policy_for(SUBJECT)}
    made = Event(policy(0), 1, STAMP, "created", "/", json.dumps(rules).encode(), b"{}")
    journal = Journal.open(path)
    journal.append([Change((made,), (fold([made]),))])
    journal.close()


def write_revisions(path: Path, things: Things, first: int, last: int) -> None:
    """Write the revisions `first` to `last` of all things in turn, a thousand events in each second.

    It is one transaction, without waiting for the disk: a pipeline sees all of them or none.
    """
    given = {
        "things": things.count, "first": first, "last": last, "begun": int(BEGUN.timestamp()), "policy": str(policy(0)),
        "filler": "x" * things.filler, "noise": things.noise, "prefix": f"acme.bench:{things.prefix}",
    }  # fmt: skip
    with sqlite3.connect(path, isolation_level=None) as connection:
        for statement in (
            "PRAGMA synchronous = OFF",
            "BEGIN IMMEDIATE",
            "DROP INDEX entries_by_seq",
            f"""{_COUNTED.format(":things")}
            INSERT INTO entities (key, type, id, revision, created, modified, state, policy, newest_seq)
            SELECT key, 'thing', id, :last, created, {_VALUE_STAMP}, CAST({_FILLED_THING} AS BLOB), :policy, number + 2
            FROM (SELECT key, id, (:last - 1) * :things + number AS number, {_VALUE_STAMP} AS created
                  FROM (SELECT n + 2 AS key, :prefix || n AS id, n AS number FROM counted))
            WHERE true ON CONFLICT (key) DO UPDATE SET revision = excluded.revision, modified = excluded.modified,
                state = excluded.state, newest_seq = excluded.newest_seq""",
            f"""WITH RECURSIVE counted(n) AS (SELECT :first - 1 UNION ALL SELECT n + 1 FROM counted WHERE n + 1 < :last)
            INSERT INTO entries (entity, revision, seq, timestamp, action, path, value, headers)
            SELECT key, n + 1, number + 2, {_VALUE_STAMP},
                   CASE n WHEN 0 THEN 'created' ELSE 'modified' END, CASE n WHEN 0 THEN '/' ELSE '{VALUE_PATH}' END,
                   CAST(CASE n WHEN 0 THEN {_FILLED_THING} ELSE {_VALUE} END AS BLOB), CAST('{{}}' AS BLOB)
            FROM (SELECT key, id, n, n * :things + key - 2 AS number FROM entities CROSS JOIN counted WHERE type = 'thing')
            """,
            "CREATE UNIQUE INDEX entries_by_seq ON entries (seq)",
            "UPDATE counters SET value = :last * :things + 1 WHERE name = 'seq'",
            # As after an update of the service: the search index has the policy, but no things yet.
            "UPDATE search_progress SET indexed = 1",
            "COMMIT",
        ):
            names = {name: value for name, value in given.items() if f":{name}" in statement}
            connection.execute(statement, names)
    connection.close()


def drop_entries(path: Path) -> None:
    """Delete all events of the journal, as the service does when it trims, but faster."""
    with sqlite3.connect(path, isolation_level=None) as connection:
        connection.execute("DELETE FROM entries")
    connection.close()


def changes(first: int, count: int, entities: int) -> Iterator[Change]:
    """Yield the changes numbered from `first`, of the entities in turn."""
    for number in range(first, first + count):
        revision, which = divmod(number, entities)
        yield change(thing(which), revision + 1, number)


def change(entity: EntityId, revision: int, number: int) -> Change:
    """Return a sensor reading of some hundred bytes, different from others, and the thing after it."""
    at = _stamp(number)
    reading = {"celsius": (number * 7919 % 100_003) / 1000, "n": number, "note": f"{number * 2654435761 % 2**32:08x}"}
    if revision == 1:
        event = Event(entity, 1, at, "created", "/", json.dumps(_thing(entity, reading)).encode(), b"{}")
    else:
        event = Event(entity, revision, at, "modified", PATH, json.dumps(reading).encode(), b"{}")
    state = Snapshot(entity, revision, _stamp(0), at, _thing(entity, reading), str(entity))
    return Change((event,), (state,))


def _thing(entity: EntityId, reading: dict[str, object]) -> dict[str, object]:
    features = {"sensor": {"properties": {"reading": reading}}}
    return {"thingId": str(entity), "policyId": str(entity), "attributes": {"maker": "acme"}, "features": features}


def _stamp(number: int) -> str:
    """Return the time of an event, with a hundred events in each second."""
    at = BEGUN + timedelta(milliseconds=10 * number)
    return f"{at.isoformat(timespec='microseconds')[:-6]}Z"
