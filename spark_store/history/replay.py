"""Folds events into the state of an entity. Pure.

`evolve` defines what an event does to a state, for commands and for the lake's pipeline; unchanged parts are shared with the
former state. Ditto protocol, events: `created` and `modified` set the value at the path and create missing parents; `merged`
applies a merge patch (RFC 7396); `deleted` removes the value, and at `/` leaves a tombstone that continues the revisions.
Beyond RFC 7396, a key `{{ ~regex~ }}` with the value null deletes every fully matching key.

Metadata in `_metadata` (`mappings.model.metadata`) is changed by the event's stored headers, and deleted with its data. A
message of a stream only changes the revision. Whether an event is allowed was decided before.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Mapping
from enum import Enum
from functools import lru_cache
from typing import Any, Final, NamedTuple

import msgspec

from mappings.ids import MAX_ID_LENGTH, EntityType, cached_by_type
from mappings.json_values import decode_value, encode_state, parse_json
from mappings.model.json_pointer import Segments, get, parse_pointer, put, remove
from mappings.model.metadata import METADATA, evolve_metadata, read_changes
from mappings.model.signals import Event
from spark_store.records import Snapshot

MATCH_BUDGET = 1_000_000
"""The most steps that the delete patterns of one merge may take, over all keys: some milliseconds."""

_PATTERN_STEPS, _CHARACTER_STEPS = 1000, 100
"""The cost of compiling a pattern, and of each of its characters."""

_IMPORTS = ("imports",)
"""The members that every policy has."""

_WHOLE_KEY = re.compile(r"(/entries/[^/]+/(?:subjects|resources))/(.+)", re.DOTALL)
_DELETE_KEY = re.compile(r"\{\{\s*(?:~(?P<tilde>.+)~|/(?P<slash>.+)/)\s*\}\}", re.DOTALL)


class DeletePatternRefused(ValueError):
    """A delete pattern is not a regular expression, or the patterns could take too long."""


class MatchBudget:
    """The budget for the delete patterns of one merge. The same merge always costs the same."""

    __slots__ = ("steps",)

    def __init__(self) -> None:
        self.steps = MATCH_BUDGET

    def spend(self, steps: int, pattern: str) -> None:
        """Raises DeletePatternRefused if the budget is exceeded."""
        self.steps -= steps
        if self.steps < 0:
            raise DeletePatternRefused(f"found {pattern}, expected fewer patterns, with fewer repetitions and choices")


def evolve(snapshot: Snapshot | None, event: Event) -> Snapshot:
    """Return the state after `event`.

    Raises msgspec.DecodeError for a value that is not JSON, which no journal has.
    """
    if event.entity.type is EntityType.STREAM:
        created = event.timestamp if snapshot is None or snapshot.is_deleted else snapshot.created
        return Snapshot(event.entity, event.revision, created, event.timestamp, {}, None)
    return evolve_parsed(snapshot, event, None if event.value is None else decode_value(event.value))


def evolve_parsed(snapshot: Snapshot | None, event: Event, value: Any) -> Snapshot:
    """Return the state of a thing or policy after `event`, whose value is given as parsed JSON."""
    before = snapshot.state if snapshot is not None else None
    data: Mapping[str, Any] = {} if before is None else data_of(before) if METADATA in before else before
    path = STATE_PATHS[event.entity.type](event.path)
    if event.action == "deleted":
        state = remove(data, path) if path else None
        if path == _IMPORTS and event.entity.type is EntityType.POLICY:
            state = put(state, _IMPORTS, {})
    elif event.action == "merged":
        state = merge_at(data, path, value)
    else:
        state = put(data, path, value)
    if state is not None and (data is not before or event.headers != b"{}"):
        # Most things have no metadata, and most events no headers.
        emptied = path if value == {} and event.action in ("created", "modified") else None
        state = _annotate(event, before, data, state, emptied)
    created = event.timestamp if snapshot is None or before is None else snapshot.created
    policy = snapshot.policy if snapshot is not None else None
    if event.entity.type is EntityType.POLICY:
        # A policy guards itself.
        policy = str(event.entity)
    elif state is not None:
        policy = state.get("policyId")
    return Snapshot(event.entity, event.revision, created, event.timestamp, state, policy)


def data_of(state: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a state without the metadata of a thing."""
    return {key: value for key, value in state.items() if key != METADATA} if METADATA in state else state


def _annotate(
    event: Event,
    before: Mapping[str, Any] | None,
    data: Mapping[str, Any],
    state: Mapping[str, Any],
    emptied: Segments | None,
) -> Mapping[str, Any]:
    """Return a state with its metadata as the last member, if there is or was some."""
    if event.entity.type is not EntityType.THING:
        return state
    present = before.get(METADATA) if before is not None else None
    changes = read_changes(event.headers)
    if present is None and not changes:
        return state
    return {**state, METADATA: evolve_metadata(present, data, state, changes, emptied)}


def _state_path(type: EntityType, path: str) -> Segments:
    if type is EntityType.POLICY and (match := _WHOLE_KEY.fullmatch(path)):
        return (*parse_pointer(match[1]), match[2])
    return parse_pointer(path)


STATE_PATHS: Final = cached_by_type(4096, _state_path)
"""A function for each type of entity: it returns the keys in a path of an event.

Below `subjects` and `resources` of a policy's entry the rest of the path is one key, slashes included.
"""


def merge_at(state: Any, path: Segments, patch: Any) -> Any:
    """Return `state` with a merge patch applied at `path`: null there deletes."""
    if path and patch is None:
        return remove(state, path)
    return put(state, path, merge(get(state, path), patch))


def merge(target: Any, patch: Any, budget: MatchBudget | None = None) -> Any:
    """RFC 7396 with delete patterns, at the cost of `budget`.

    Raises DeletePatternRefused, never for a stored event.
    """
    return _merge(target, patch, budget or MatchBudget())


def _merge(target: Any, patch: Any, budget: MatchBudget) -> Any:
    if not isinstance(patch, Mapping):
        return patch
    merged = dict(target) if isinstance(target, Mapping) else {}
    for key in [key for key, value in patch.items() if value is None and is_delete_pattern(key)]:
        for found in matching_keys(key, merged, budget):
            del merged[found]
    for key, value in patch.items():
        if value is not None:
            merged[key] = _merge(merged.get(key), value, budget)
        elif not is_delete_pattern(key):
            merged.pop(key, None)
    return merged


def is_delete_pattern(key: str) -> bool:
    """Whether a patch's key with the value null selects keys by a regular expression."""
    return key.startswith("{{") and _DELETE_KEY.fullmatch(key) is not None


def matching_keys(pattern: str, target: Iterable[str], budget: MatchBudget) -> list[str]:
    """The keys that a delete pattern names, at the cost of `budget`. Raises DeletePatternRefused."""
    budget.spend(_PATTERN_STEPS + _CHARACTER_STEPS * len(pattern), pattern)
    compiled, keys = _delete_pattern(pattern), list(target)
    budget.spend(sum(compiled.steps(len(key)) for key in keys), pattern)
    return [key for key in keys if compiled.expression.fullmatch(key)]


class _DeletePattern(NamedTuple):
    """A compiled pattern and its bound: it tries at most `variants` · length^`unbounded` ways."""

    expression: re.Pattern[str]
    variants: int
    unbounded: int

    def steps(self, length: int) -> int:
        return self.variants * int((length + 1) ** max(1, self.unbounded))


_TOKEN = re.compile(
    r"\\(?P<escape>.)|(?P<set>\[\^?\]?(?:\\.|[^\]\\])*\])|(?P<open>\((?:\?:)?)|(?P<close>\))|(?P<choice>\|)"
    r"|(?P<repeat>[*+?]|\{\d*(?:,\d*)?\})(?P<manner>[?+]?)|.",
    re.DOTALL,
)


@lru_cache(maxsize=256)
def _delete_pattern(key: str) -> _DeletePattern:
    """Compile a pattern whose matching is bounded: nothing that repeats may contain a variation.

    A backtracking matcher takes exponential time only for a repetition or choice inside a repetition, or for many in a row;
    the first is refused, the second is counted. It takes memory for each round of a repetition: rounds beyond the longest
    key, and empty rounds, are refused.
    """
    match = _DELETE_KEY.fullmatch(key)
    text = (match["tilde"] or match["slash"]) if match else key
    if len(text) > MAX_ID_LENGTH:
        raise DeletePatternRefused(f"found an expression of {len(text)} characters, expected at most {MAX_ID_LENGTH}")
    variants, unbounded = _count_variations(text)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # caused by a client, so no warning for the operator
            return _DeletePattern(re.compile(text), variants, unbounded)
    except (re.error, OverflowError, RecursionError) as error:
        raise DeletePatternRefused(f"found {text}, expected a regular expression: {error}") from error


def _count_variations(text: str) -> tuple[int, int]:
    """Count the ways to match: a number, and the power of the key's length that multiplies it."""
    variants, unbounded = 1, 0
    groups = [False]
    varies = False  # whether the last atom is a group with a variation in it
    for token in _TOKEN.finditer(text):
        atom_varies, varies = varies, False
        if token["open"]:
            if token["open"] == "(" and text.startswith("?", token.end()):
                raise DeletePatternRefused(f"found {text}, expected a regular expression without look-around or flags")
            if text.startswith(")", token.end()):
                raise DeletePatternRefused(f"found {text}, expected no empty group")
            groups.append(False)
        elif token["close"]:
            varies = groups.pop() if len(groups) > 1 else False
            groups[-1] |= varies
        elif token["choice"]:
            variants, groups[-1] = variants * 2, True
        elif token["repeat"]:
            if atom_varies:
                raise DeletePatternRefused(f"found {text}, expected no repetition or choice inside a repetition")
            groups[-1] = True
            factor, endless = _repetitions(text, token["repeat"])
            variants, unbounded = variants * factor, unbounded + endless
        elif token["escape"] and token["escape"].isdigit():
            raise DeletePatternRefused(f"found {text}, expected a regular expression without back references")
        variants = min(variants, MATCH_BUDGET + 1)
    return variants, unbounded


def _repetitions(text: str, quantifier: str) -> tuple[int, bool]:
    """Return the ways of a quantifier, and whether they grow with the key. Raises DeletePatternRefused."""
    if quantifier == "?":
        return 2, False
    if quantifier in "*+":
        return 1, True
    low, comma, high = quantifier[1:-1].partition(",")
    least, most = int(low or 0), int(high or low or 0)
    if max(least, most) > MAX_ID_LENGTH:
        raise DeletePatternRefused(f"found {text}, expected at most {MAX_ID_LENGTH} repetitions")
    if comma and not high:
        return 1, True
    return max(1, most - least + 1), False


class FoldBase(str, Enum):
    """The base of a state: all events; a known state and later events; or nothing."""

    EVENTS = "events"
    KNOWN = "known"
    NOTHING = "nothing"


class StateFold:
    """Folds one entity's events in order of revision, with known states among them."""

    __slots__ = ("ground", "newest", "seq", "snapshot")

    def __init__(self) -> None:
        self.snapshot: Snapshot | None = None
        self.ground = FoldBase.NOTHING
        self.newest = 0
        """The revision of the newest event that was given."""
        self.seq = 0
        """The number of the newest event that was not ignored."""

    def event(self, event: Event, seq: int = 0) -> None:
        """Add an event with its number. Repeated ones, and those before the known state, are ignored."""
        self.newest = max(self.newest, event.revision)
        current = 0 if self.snapshot is None else self.snapshot.revision
        if event.revision <= current:
            return
        self.seq = max(self.seq, seq)
        if event.revision == current + 1:
            self.ground = FoldBase.EVENTS if self.snapshot is None else self.ground
            self.snapshot = evolve(self.snapshot, event)
        elif event.action == "created" and event.path == "/":
            # Created again after events that are gone, for example after an erasure: it contains the whole state.
            self.snapshot, self.ground = evolve(None, event), FoldBase.EVENTS
        else:
            self.snapshot, self.ground = None, FoldBase.NOTHING

    def known(self, snapshot: Snapshot, seq: int = 0) -> None:
        """Add a state with the number of its newest event; ignored if the events have led to one."""
        if self.snapshot is None:
            self.seq = max(self.seq, seq)
            self.snapshot, self.ground = snapshot, FoldBase.KNOWN


def is_same(one: Any, other: Any) -> bool:
    """Whether two parsed JSON values are the same: ignoring the order of keys; 1 is 1.0, but not true."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(is_same(value, other[key]) for key, value in one.items())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(is_same, one, other))
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)


def is_same_text(one: bytes | str | None, other: bytes | str | None) -> bool:
    """The same for JSON texts; None is no state. Invalid JSON equals nothing else."""
    if one == other:
        return True
    if one is None or other is None:
        return False
    try:
        return is_same(parse_json(one), parse_json(other))
    except msgspec.DecodeError:
        return False


def state_text(snapshot: Snapshot) -> bytes | None:
    """The state as the journal writes it."""
    return None if snapshot.state is None else encode_state(snapshot.state)
