"""Check whether a lake equals its journal, row by row, as a process without code of the writers.

    python -m tests.support.lake.checker DATA_DIR [--after-kill]

It reads the journal with SQLite and the tables with deltalake, and prints a line for each difference. The exit code is
1 if there is one. When everything has been moved, `events` has each event of the journal exactly once, and `latest` the
state of each entity. With `--after-kill`, `events` is the beginning of the journal, at least up to the watermark,
without gaps and duplicates, and `latest` is not older than the watermark and not newer than the journal. In both cases,
each partition of `full_snapshots` has each thing once, in its state at that event or a later one.
"""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from deltalake import DeltaTable
from pyarrow.fs import LocalFileSystem, SubTreeFileSystem

_ENTRIES = """
    SELECT t.type, t.id, e.revision, e.seq, e.timestamp, e.action, e.path, e.value, e.headers
    FROM entries AS e JOIN entities AS t ON t.key = e.entity ORDER BY e.seq
"""
_STATES = """
    SELECT type, id, policy, revision, newest_seq, created, modified, state FROM entities WHERE newest_seq > 0
"""

Row = tuple[Any, ...]


def check(data_dir: Path, *, after_kill: bool = False) -> list[str]:
    """Return the differences, at most twenty lines of each kind."""
    journal = sqlite3.connect(f"{(data_dir / 'journal.db').absolute().as_uri()}?mode=rw", uri=True)
    try:
        entries = [_text(row) for row in journal.execute(_ENTRIES)]
        states = [_text(row) for row in journal.execute(_STATES)]
    finally:
        journal.close()
    watermark = _watermark(data_dir)
    events, latest = _events(data_dir), _latest(data_dir)
    moments = list(_full_snapshots_wrong(data_dir, entries))
    if after_kill:
        found = [*_events_wrong(entries[: len(events)], events), *_behind(entries, watermark, events, latest, states)]
    else:
        found = [*_events_wrong(entries, events), *_unequal("latest", states, latest)]
        if watermark != (newest := entries[-1][3] if entries else 0):
            found.append(f"watermark: expected {newest}, found {watermark}")
    return found + moments


def _events_wrong(entries: list[Row], events: list[Row]) -> Iterator[str]:
    """Find lost, duplicate and changed events."""
    numbers = Counter(row[3] for row in events)
    repeated = sorted(seq for seq, times in numbers.items() if times > 1)
    missing = sorted({row[3] for row in entries} - set(numbers))
    yield from _first("events: there more than once: number", repeated)
    yield from _first("events: missing: number", missing)
    yield from _unequal("events", entries, events)


def _behind(entries: list[Row], watermark: int, events: list[Row], latest: list[Row], states: list[Row]) -> list[str]:
    found = []
    if watermark > len(events):
        found.append(f"watermark: found {watermark}, expected at most the {len(events)} events in the lake")
    kept = {row[:2]: row[3] for row in latest}
    if len(kept) != len(latest):
        found.append("latest: an entity is there more than once")
    found += [
        f"latest: expected {row[1]} at revision {row[2]} or later, found {kept.get(row[:2])}"
        for row in entries[:watermark]
        if kept.get(row[:2], 0) < row[2]
    ]
    newest = {row[:2]: row[3] for row in states}
    found += [f"latest: {key[1]} is newer than the journal" for key, it in kept.items() if it > newest.get(key, 0)]
    return found[:20]


def _full_snapshots_wrong(data_dir: Path, entries: list[Row]) -> Iterator[str]:
    rows = _rows(data_dir / "lake" / "full_snapshots")
    repeated = [key for key, times in Counter((row["as_of"], row["entity"]) for row in rows).items() if times > 1]
    yield from _first("full_snapshots: there more than once:", repeated)
    for moment in sorted({row["as_of"] for row in rows}):
        kept = {row["entity"]: row["revision"] for row in rows if row["as_of"] == moment}
        known = {row[1]: row[2] for row in entries if row[0] == "thing" and row[3] <= moment}
        late = [id for id, revision in known.items() if kept.get(id, 0) < revision]
        yield from _first(f"full_snapshots: older than event {moment}, or not there:", late)


def _unequal(table: str, expected: list[Row], found: list[Row]) -> Iterator[str]:
    wanted, there = Counter(expected), Counter(found)
    yield from _first(f"{table}: in the journal and not so in the lake:", sorted((wanted - there).elements(), key=str))
    yield from _first(f"{table}: in the lake and not so in the journal:", sorted((there - wanted).elements(), key=str))


def _first(what: str, rows: Iterable[object]) -> Iterator[str]:
    for _, row in zip(range(20), rows, strict=False):
        yield f"{what} {row}"


def _text(row: Row) -> Row:
    return tuple(value.decode() if isinstance(value, bytes) else value for value in row)


def _events(data_dir: Path) -> list[Row]:
    names = ("entity_type", "entity", "revision", "seq", "ts", "action", "path", "value", "headers")
    return [tuple(_value(row[name]) for name in names) for row in _rows(data_dir / "lake" / "events")]


def _latest(data_dir: Path) -> list[Row]:
    names = ("entity_type", "entity", "policy_id", "revision", "seq", "created", "modified", "state")
    rows = _rows(data_dir / "lake" / "latest")
    assert all(row["deleted"] == (row["state"] is None) for row in rows)
    return [tuple(_value(row[name]) for name in names) for row in rows]


def _rows(folder: Path) -> list[dict[str, Any]]:
    if not (folder / "_delta_log").is_dir():
        return []
    # pyarrow's own file system: a thread of its pool that calls into Python may crash the process at its end.
    files = SubTreeFileSystem(str(folder), LocalFileSystem())
    found: list[dict[str, Any]] = DeltaTable(str(folder)).to_pyarrow_table(filesystem=files).to_pylist()
    return found


def _value(value: Any) -> Any:
    """Return a value; times are in the format of the journal."""
    if not hasattr(value, "isoformat"):
        return value
    return value.isoformat(timespec="microseconds").replace("+00:00", "Z")


def _watermark(data_dir: Path) -> int:
    try:
        return int(json.loads((data_dir / "lake" / "pipeline" / "watermark.json").read_bytes())["seq"])
    except FileNotFoundError:
        return 0


def assert_whole(data_dir: Path, *, after_kill: bool = False) -> None:
    """Run the checker as a process. Raises AssertionError with its output."""
    command = [sys.executable, "-m", "tests.support.lake.checker", str(data_dir), *(["--after-kill"] * after_kill)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"


if __name__ == "__main__":
    wrong = check(Path(sys.argv[1]), after_kill="--after-kill" in sys.argv)
    print("\n".join(wrong))
    sys.exit(bool(wrong))
