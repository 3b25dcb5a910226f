"""Folds past things in Spark's workers, for `spark_store.queries.as_of`.

Input rows come by thing and revision: known states (`KNOWN`), and events. The result has one row for each thing that exists
after its last row, unless the predicate cannot match for anyone. Each worker writes its part into a file, since results that
Spark returns wait in the memory of its Java process. Most events set a value, often at the same places: then only the
last value of each place is parsed, so keys may have another order than in the journal. All other events use
`spark_store.history.replay`.
"""

from __future__ import annotations

import itertools
import os
import uuid
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from mappings.ids import EntityType
from mappings.json_values import decode_state, decode_value, encode_state
from mappings.model.json_pointer import put
from mappings.model.metadata import METADATA
from mappings.model.signals import Event
from spark_store.history.event_view import thing_document
from spark_store.history.replay import STATE_PATHS, StateFold
from spark_store.records import Snapshot, entity_of
from spark_store.rql.ast import And, Not, Or, Predicate
from spark_store.rql.search_evaluator import holds

if TYPE_CHECKING:
    import pyarrow as pa

KNOWN = "known"
"""The action of a row that is a state."""

DDL = "file STRING, is_complete BOOLEAN"
"""The output columns: the path of a file, and whether it has all things of the worker."""

_BATCH: Final = 2_000
_BATCH_CHARACTERS: Final = 4 << 20
"""How many things, or characters of their states, are written and read at once."""
_SETS = frozenset({"created", "modified"})
_revision_of = attrgetter("revision")


class FoldRow(NamedTuple):
    """An input row: an event, or a known state, which has neither path nor headers.

    `at` and `created` are times as events write them; an event has neither policy nor `created`.
    """

    entity: str
    revision: int
    action: str
    path: str | None
    value: str | None
    headers: str | None
    at: str
    policy_id: str | None
    created: str | None


class Candidate(NamedTuple):
    """A past thing that may match; its state is JSON text.

    `matches`: whether it matches for a subject that may read all of it.
    """

    entity: str
    revision: int
    created: str
    modified: str
    state: str
    matches: bool


class StateRow(NamedTuple):
    """A past thing. Its state is JSON text, and the parsed value if it is at hand."""

    entity: str
    revision: int
    created: str
    modified: str
    text: str | None
    state: Any = None


class FoldOutput(NamedTuple):
    """The folder for the files of all workers, and the most bytes of one file."""

    folder: str
    max_bytes: int


def fold_to_file(
    predicate: Predicate | None, output: FoldOutput, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Fold a worker's batches into a file, and yield a row about it (`DDL`)."""
    # The service imports this module, and needs Arrow only for queries.
    import pyarrow as pa

    folded = fold_batches(predicate, batches)
    first = next(folded, None)
    if first is None:
        return
    path, is_complete = os.path.join(output.folder, uuid.uuid4().hex), True
    compressed = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.OSFile(path, "wb") as file, pa.ipc.new_stream(file, first.schema, options=compressed) as stream:
        for batch in itertools.chain([first], folded):
            # The remaining rows are read all the same: Spark would end a worker that leaves some.
            if is_complete := file.tell() <= output.max_bytes:
                stream.write_batch(batch)
    yield pa.RecordBatch.from_pydict({"file": [path], "is_complete": [is_complete]})


def fold_batches(predicate: Predicate | None, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the folded things of some batches, with the columns of `Candidate`."""
    import pyarrow as pa

    types = dict.fromkeys(Candidate._fields, pa.string()) | {"revision": pa.int64(), "matches": pa.bool_()}
    rows = (row for batch in batches for row in zip(*(column.to_pylist() for column in batch.columns), strict=True))
    things = (state_after(list(map(FoldRow._make, group))) for _, group in itertools.groupby(rows, key=itemgetter(0)))
    weak = None if predicate is None or (weaker := weaken(predicate)) == predicate else weaker
    found = (row for thing in things if thing is not None and (row := _match(predicate, weak, thing)) is not None)
    for some in _slices(found):
        columns = zip(*some, strict=True)
        arrays = [pa.array(values, type) for values, type in zip(columns, types.values(), strict=True)]
        yield pa.RecordBatch.from_arrays(arrays, list(types))


def _slices(rows: Iterator[Candidate]) -> Iterator[list[Candidate]]:
    held, characters = list[Candidate](), 0
    for row in rows:
        held.append(row)
        characters += len(row.state)
        if len(held) >= _BATCH or characters >= _BATCH_CHARACTERS:
            yield held
            held, characters = [], 0
    if held:
        yield held


def weaken(predicate: Predicate) -> Predicate:
    """Return a weaker predicate for partial readers, which is true wherever `predicate` may be.

    A comparison with an unreadable value is false, which only below a `not` makes more things match.
    """
    match predicate:
        case Not():
            return And(())
        case And(parts):
            return And(tuple(map(weaken, parts)))
        case Or(parts):
            return Or(tuple(map(weaken, parts)))
        case _:
            return predicate


def _match(predicate: Predicate | None, weak: Predicate | None, thing: StateRow) -> Candidate | None:
    """Return a row of the output; None if it cannot match for anyone.

    `weak` is the weakened predicate, None if that is the same.
    """
    matches = True
    if predicate is not None:
        state = thing.state if thing.state is not None else decode_state(thing.text or "{}")
        document = thing_document(*thing[:4], state)
        matches = holds(predicate, document)
        if not matches and (weak is None or not holds(weak, document)):
            return None
    return Candidate(*thing[:4], thing.text if thing.text is not None else encode_state(thing.state).decode(), matches)


def state_after(rows: Sequence[FoldRow]) -> StateRow | None:
    """Return a thing after its last row; None if it does not exist, or is not known."""
    known = next((row for row in reversed(rows) if row.action == KNOWN), None)
    events = rows if known is None else [row for row in rows if row.revision > known.revision]
    if not events:
        if known is None or known.value is None:
            return None
        return StateRow(known.entity, known.revision, known.created or known.at, known.at, known.value)
    return _fold_values(known, events) if _only_sets_values(known, events) else _fold(known, events)


def _only_sets_values(known: FoldRow | None, events: Sequence[FoldRow]) -> bool:
    """Whether all events, none missing, set a value in its place and nothing else."""
    before = 0 if known is None else known.revision
    if events[0].revision != before + 1 or events[-1].revision != before + len(events):
        return False
    if known is not None and (known.value is None or METADATA in known.value):
        return False
    return all(event.action in _SETS and METADATA not in (event.headers or "") for event in events)


def _fold_values(known: FoldRow | None, events: Sequence[FoldRow]) -> StateRow:
    """Fold by the last value of each place, after the last value of the whole thing."""
    state: Any = {} if known is None else decode_state(known.value or "{}")
    last = {event.path: event.revision for event in events}
    for event in events[bisect_left(events, last.get("/", 0), key=_revision_of) :]:
        if last[event.path] == event.revision:
            state = put(state, STATE_PATHS[EntityType.THING](event.path or "/"), decode_value(event.value or "null"))
    newest = events[-1]
    created = events[0].at if known is None else known.created or known.at
    return StateRow(newest.entity, newest.revision, created, newest.at, None, state)


def _fold(known: FoldRow | None, events: Sequence[FoldRow]) -> StateRow | None:
    folding, entity = StateFold(), entity_of(EntityType.THING.value, events[0].entity)
    if known is not None:
        state = None if known.value is None else decode_state(known.value)
        folding.known(Snapshot(entity, known.revision, known.created or known.at, known.at, state, known.policy_id))
    for row in events:
        value, headers = None if row.value is None else row.value.encode(), (row.headers or "{}").encode()
        folding.event(Event(entity, row.revision, row.at, row.action, row.path or "/", value, headers))
    made = folding.snapshot
    if made is None or made.state is None:
        return None
    return StateRow(events[0].entity, made.revision, made.created, made.modified, None, made.state)
