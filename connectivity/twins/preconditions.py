"""What a command asks of the present before it is carried out: a condition, entity tags, a difference.

Three questions in this order (Ditto protocol, conditional requests): is the `condition` true of the thing, do `if-match`
and `if-none-match` agree with the tag of the addressed part, and, for `if-equal`, would anything change. A tag is that of
what the caller may read of the part, so that no tag confirms a guess about what he may not.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Any, Final, NamedTuple

import msgspec

from connectivity.errors import TwinError
from connectivity.twins.base import Case
from connectivity.twins.enforcer import ALWAYS_VISIBLE, READ, Enforcer
from mappings.ids import EntityType
from mappings.pointer import Segments, format_pointer
from spark_store import rql
from spark_store.errors import QueryError
from spark_store.partial import whole_thing
from spark_store.records import Snapshot
from spark_store.rql.ast import And, Field, Not, Or

UPDATE: Final = "update"
SKIP: Final = "skip"
SKIP_MINIMIZING: Final = "skip-minimizing-merge"

_HEADERS: Final = frozenset({"if-match", "if-none-match", "if-equal", "condition"})
_TAG: Final = re.compile(r'(W/)?("[^"*]*")')
_TAGS: Final = re.compile(r'\s*(?:W/)?"[^"*]*"\s*(?:,\s*(?:W/)?"[^"*]*"\s*)*')


class Tags(NamedTuple):
    """The value of `if-match` or `if-none-match`: any tag at all, or these, each with its mark of weakness."""

    is_any: bool
    tags: tuple[tuple[bool, str], ...] = ()

    def match_strongly(self, tag: str) -> bool:
        return self.is_any or (False, tag) in self.tags

    def match_weakly(self, tag: str) -> bool:
        return self.is_any or any(tag == known for _, known in self.tags)


class Preconditions(msgspec.Struct, frozen=True):
    """What the headers of a command ask. `read` makes one."""

    if_match: Tags | None = None
    if_none_match: Tags | None = None
    if_equal: str = UPDATE
    condition: rql.Predicate | None = None

    def check_readable(self, case: Case, enforcer: Enforcer, state: Mapping[str, Any]) -> None:
        """Refuse a condition on what the caller may not read."""
        if self.condition is None:
            return
        for field in _fields(self.condition):
            if not all(_is_readable(case, enforcer, path) for path in _places(field.path, state)):
                raise case.refuse("things:condition.failed")

    def check_condition(self, case: Case, snapshot: Snapshot) -> None:
        """Refuse unless the condition is true of the thing as it is."""
        if self.condition is None:
            return
        predicate = rql.resolve_times(self.condition, datetime.fromisoformat(case.now))
        if not rql.evaluate(predicate, whole_thing(snapshot)):
            raise case.refuse("things:condition.failed")

    def check_tags(self, case: Case, present: Callable[[], str | None] | None) -> None:
        """Refuse unless the entity tags agree. `present` gives the part's tag, and is None where the part is missing.

        A part that the caller may not read has no tag for him: then only `*` matches it.
        """
        if self.if_match is None and self.if_none_match is None:
            return
        action = case.command.action
        if present is None:
            if self.if_match is not None and action not in ("delete", "retrieve"):
                raise case.precondition_failed("there is nothing that 'if-match' could match")
            return
        tag = present() or ""
        if self.if_match is not None and not self.if_match.match_strongly(tag):
            raise case.precondition_failed("no tag of 'if-match' is the present one")
        if self.if_none_match is not None and self.if_none_match.match_weakly(tag):
            if action == "retrieve":
                raise case.refuse(f"{case.entity.type.group}:precondition.notmodified")
            raise case.precondition_failed("a tag of 'if-none-match' is the present one")

    @property
    def skips_equal(self) -> bool:
        return self.if_equal != UPDATE


_NONE: Final = Preconditions()


def read(case: Case) -> Preconditions:
    """The preconditions of a command. Raises TwinError for headers that cannot be understood."""
    headers = case.headers
    if _HEADERS.isdisjoint(headers):
        return _NONE
    if_equal = headers.get("if-equal", UPDATE)
    if if_equal not in (UPDATE, SKIP, SKIP_MINIMIZING):
        raise case.refuse("header.invalid", "if-equal")
    return Preconditions(_tags(case, "if-match"), _tags(case, "if-none-match"), if_equal, _condition(case))


def _tags(case: Case, name: str) -> Tags | None:
    value = case.headers.get(name)
    if value is None:
        return None
    if isinstance(value, str) and value.strip() == "*":
        return Tags(True)
    if not isinstance(value, str) or _TAGS.fullmatch(value) is None:
        raise case.refuse("header.invalid", name)
    return Tags(False, tuple((bool(weak), tag) for weak, tag in _TAG.findall(value)))


def _condition(case: Case) -> rql.Predicate | None:
    """The parsed condition of a thing command; policies have none, and nothing that exists not yet has."""
    text = case.headers.get("condition")
    if text is None or case.entity.type is EntityType.POLICY:
        return None
    if not isinstance(text, str):
        raise case.refuse("header.invalid", "condition")
    try:
        return rql.parse(text)
    except QueryError as error:
        raise TwinError(error.fault, case.entity.type.group) from error


def _fields(predicate: rql.Predicate) -> Iterator[Field]:
    """Every field that a predicate looks at."""
    match predicate:
        case And(parts) | Or(parts):
            for part in parts:
                yield from _fields(part)
        case Not(part):
            yield from _fields(part)
        case _:
            yield predicate.field


def _places(path: Segments, state: Mapping[str, Any]) -> list[Segments]:
    """The places in a thing that a field is at; `features/*` is each of the thing's features."""
    if path[:2] != ("features", "*"):
        return [path]
    features = state.get("features")
    known = list(features) if isinstance(features, Mapping) else []
    return [("features", feature, *path[2:]) for feature in known]


def _is_readable(case: Case, enforcer: Enforcer, path: Segments) -> bool:
    if path[0] in ALWAYS_VISIBLE["thing"]:
        return enforcer.partial(case.subjects, READ, "thing:/")
    return enforcer.unrestricted(case.subjects, READ, f"thing:{format_pointer(path)}")
