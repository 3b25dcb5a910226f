"""The preconditions of a command: condition, entity tags, `if-equal`, in this order.

See the Ditto protocol, conditional requests. A tag covers what the caller may read of the part, so that it confirms no guess
about the rest. A merge may have conditions for parts of its patch (`merge-thing-patch-conditions`): failing parts are left
out. Metadata headers are read here too, so that errors in headers come before anything about the thing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

import msgspec

from connectivity.authorization.enforcer import ALWAYS_VISIBLE, READ, Enforcer
from connectivity.errors import TwinError
from connectivity.twins import metadata
from connectivity.twins.access import forbidden, has_any_permission
from connectivity.twins.context import CommandContext, part_tag
from connectivity.twins.errors import fault
from mappings.errors import DecodeError, Fault
from mappings.ids import EntityType
from mappings.model.json_pointer import MISSING, Segments, format_pointer, parse_pointer
from mappings.model.metadata import METADATA, owner_of
from mappings.model.signals import Live, LiveCommand
from spark_store import rql
from spark_store.errors import FilterTooExpensive, QueryError, RqlSyntaxError
from spark_store.history.event_view import whole_thing
from spark_store.records import Snapshot

_TAG: Final = re.compile(r'(W/)?("[^"*]*")')
_TAGS: Final = re.compile(r'\s*(?:W/)?"[^"*]*"\s*(?:,\s*(?:W/)?"[^"*]*"\s*)*')


class Tags(NamedTuple):
    """The value of `if-match` or `if-none-match`: any tag, or a list of tags, each strong or weak."""

    is_any: bool
    tags: tuple[tuple[bool, str], ...] = ()

    def match_strongly(self, tag: str) -> bool:
        return self.is_any or (False, tag) in self.tags

    def match_weakly(self, tag: str) -> bool:
        return self.is_any or any(tag == known for _, known in self.tags)


def parse_tags(text: str) -> Tags | None:
    """Parse the tags of a header: `*`, or one or more of `"…"` and `W/"…"`. None for anything else."""
    if text.strip() == "*":
        return Tags(True)
    if _TAGS.fullmatch(text) is None:
        return None
    return Tags(False, tuple((bool(weak), tag) for weak, tag in _TAG.findall(text)))


UPDATE: Final = "update"
SKIP: Final = "skip"
SKIP_MINIMIZING: Final = "skip-minimizing-merge"

PATCH_CONDITIONS: Final = "merge-thing-patch-conditions"
LIVE_CONDITION: Final = "live-channel-condition"

CONDITION: Final = "condition"

_HEADERS: Final = metadata.HEADERS | {
    *("if-match", "if-none-match", "if-equal"),
    CONDITION,
    PATCH_CONDITIONS,
    LIVE_CONDITION,
}


class Preconditions(msgspec.Struct, frozen=True):
    """The preconditions in the headers of a command, as `read` returns them."""

    if_match: Tags | None = None
    if_none_match: Tags | None = None
    if_equal: str = UPDATE
    condition: rql.Predicate | None = None
    live_condition: rql.Predicate | None = None
    """The condition of the twin for a query to go to the device."""
    patch_conditions: tuple[tuple[Segments, rql.Predicate], ...] = ()
    """Places in a patch, and the condition of each."""
    metadata: metadata.MetadataRequest = metadata.NOTHING
    invalid: TwinError | None = None
    """The refusal of an invalid condition, which only matters if the thing exists for the caller."""

    def check_readable(self, case: CommandContext, enforcer: Enforcer, state: Mapping[str, Any]) -> None:
        """Refuse an invalid condition, and one on values of the thing that the caller may not read."""
        if self.invalid is not None:
            raise self.invalid
        if self.condition is None and self.live_condition is None and not self.patch_conditions:
            return
        asked = (self.condition, self.live_condition, *(predicate for _, predicate in self.patch_conditions))
        for predicate in (predicate for predicate in asked if predicate is not None):
            if not _may_compare(case.subjects, enforcer, predicate, state):
                raise case.refuse("things:condition.failed")

    def forbidden(self, case: CommandContext, enforcer: Enforcer, state: Mapping[str, Any], code: str) -> TwinError:
        """Return the refusal for a missing permission; that of an unreadable condition comes first."""
        if has_any_permission(case.entity, enforcer, case.subjects):
            self.check_readable(case, enforcer, state)
        return forbidden(case, enforcer, code)

    def check_condition(self, case: CommandContext, snapshot: Snapshot) -> None:
        """Refuse the command unless its condition is true of the present thing."""
        if self.condition is None:
            return
        if not _holds(case, self.condition, snapshot):
            raise case.refuse("things:condition.failed")

    def is_for_device(self, case: CommandContext, snapshot: Snapshot) -> bool:
        """Whether the twin satisfies the live condition."""
        return self.live_condition is not None and _holds(case, self.live_condition, snapshot)

    def refused_paths(self, case: CommandContext, snapshot: Snapshot) -> list[Segments]:
        """Return the places of a patch whose condition is false."""
        results = _results_of(case, [predicate for _, predicate in self.patch_conditions], snapshot)
        return [place for (place, _), is_true in zip(self.patch_conditions, results, strict=True) if not is_true]

    def check_tags(self, case: CommandContext, present: Callable[[], str | None] | None) -> None:
        """Refuse the command unless its entity tags match.

        `present` returns the part's tag; it is None if the part is missing. A part that the caller may not read has no tag:
        only `*` matches it. The refusal contains the tag.
        """
        if self.if_match is None and self.if_none_match is None:
            return
        action = case.command.action
        if present is None:
            if self.if_match is not None and action not in ("delete", "retrieve"):
                raise case.precondition_failed("found 'if-match', but nothing exists at this path")
            return
        tag = present()
        if self.if_match is not None and not self.if_match.match_strongly(tag or ""):
            raise _with_tag(case.precondition_failed("'if-match' does not contain the current entity tag"), tag)
        if self.if_none_match is not None and self.if_none_match.match_weakly(tag or ""):
            if action == "retrieve":
                raise _with_tag(case.refuse(f"{case.entity.type.group}:precondition.notmodified"), tag)
            raise _with_tag(case.precondition_failed("'if-none-match' contains the current entity tag"), tag)

    def check_part_tag(self, case: CommandContext, enforcer: Enforcer, snapshot: Snapshot, part: Any) -> None:
        """Refuse the command unless its entity tags match those of the addressed part, which may be MISSING."""
        self.check_tags(case, None if part is MISSING else lambda: part_tag(case, enforcer, snapshot, part))

    @property
    def skips_equal(self) -> bool:
        return self.if_equal != UPDATE


def _with_tag(refused: TwinError, tag: str | None) -> TwinError:
    return TwinError(refused.fault, refused.group, tag)


NONE: Final = Preconditions()
"""The preconditions of most commands."""


def read(case: CommandContext) -> Preconditions:
    """The preconditions of a command. Raises TwinError for headers that cannot be understood."""
    headers = case.command.headers
    if _HEADERS.isdisjoint(headers):
        return NONE
    if_equal = headers.get("if-equal", UPDATE)
    if if_equal not in (UPDATE, SKIP, SKIP_MINIMIZING):
        raise case.refuse("header.invalid", "if-equal")
    asked = Preconditions(
        _tags(case, "if-match"),
        _tags(case, "if-none-match"),
        if_equal,
        patch_conditions=tuple(_patch_conditions(case)),
        metadata=metadata.read(case),
    )
    condition, live_condition = _text_of(case, CONDITION), _text_of(case, LIVE_CONDITION)
    if condition is None and live_condition is None:
        return asked
    try:
        return msgspec.structs.replace(
            asked,
            condition=None if condition is None else _predicate(case, CONDITION, condition),
            live_condition=None if live_condition is None else _predicate(case, LIVE_CONDITION, live_condition),
        )
    except TwinError as error:
        return msgspec.structs.replace(asked, invalid=error)


def _tags(case: CommandContext, name: str) -> Tags | None:
    value = case.headers.get(name)
    if value is None:
        return None
    tags = parse_tags(value) if isinstance(value, str) else None
    if tags is None:
        raise case.refuse("header.invalid", name)
    return tags


def _text_of(case: CommandContext, header: str) -> str | None:
    """Return the text of a condition of a thing command; policies and creations have none."""
    text = case.headers.get(header)
    if text is None or case.entity.type is EntityType.POLICY or case.command.action == "create":
        return None
    if not isinstance(text, str):
        raise case.refuse("header.invalid", header)
    return text


def _predicate(case: CommandContext, header: str, text: Any) -> rql.Predicate:
    if not isinstance(text, str):
        raise case.refuse("header.invalid", header)
    try:
        return rql.parse(text)
    except QueryError as error:
        if isinstance(error, RqlSyntaxError) and header != PATCH_CONDITIONS:
            raise case.refuse("things:condition.invalid", error.fault.message) from error
        raise TwinError(error.fault, case.entity.type.group) from error


def _patch_conditions(case: CommandContext) -> Iterator[tuple[Segments, rql.Predicate]]:
    """The conditions for parts of a merge's patch; nothing else has parts that could be left out."""
    conditions = case.headers.get(PATCH_CONDITIONS)
    if conditions is None or case.entity.type is EntityType.POLICY:
        return
    if case.command.action != "merge":
        raise case.refuse("header.notsupported", PATCH_CONDITIONS)
    if not isinstance(conditions, Mapping):
        raise case.refuse("header.invalid", PATCH_CONDITIONS)
    for pointer, text in conditions.items():
        try:
            place = parse_pointer(pointer)
        except DecodeError as error:
            raise case.refuse("header.invalid", PATCH_CONDITIONS) from error
        if not place:
            # The condition of a whole patch is the command's own.
            raise case.refuse("header.invalid", PATCH_CONDITIONS)
        yield place, _predicate(case, PATCH_CONDITIONS, text)


def condition_fault(
    signal: Live, subjects: Sequence[str], thing: Snapshot, enforcer: Enforcer, now: datetime
) -> Fault | None:
    """Return the fault if the condition of a live signal is invalid, unreadable, or not true."""
    text = signal.headers.get(CONDITION)
    if text is None:
        return None
    try:
        predicate = rql.parse(text)
        if _may_compare(subjects, enforcer, predicate, thing.state or {}) and all(_results([predicate], thing, now)):
            return None
    except QueryError as error:
        if isinstance(signal, LiveCommand) and isinstance(error, RqlSyntaxError):
            return fault("things:condition.invalid", signal.entity, signal.path, error.fault.message)
        return error.fault
    return fault("things:condition.failed", signal.entity, signal.path)


def _holds(case: CommandContext, predicate: rql.Predicate, snapshot: Snapshot) -> bool:
    return all(_results_of(case, [predicate], snapshot))


def _results_of(case: CommandContext, predicates: Sequence[rql.Predicate], snapshot: Snapshot) -> list[bool]:
    """Return whether each predicate is true of a thing. Raises TwinError if that would take long."""
    try:
        return _results(predicates, snapshot, datetime.fromisoformat(case.now))
    except FilterTooExpensive as error:
        raise TwinError(error.fault, case.entity.type.group) from error


def _results(predicates: Sequence[rql.Predicate], snapshot: Snapshot, now: datetime) -> list[bool]:
    """Return the same. Raises FilterTooExpensive."""
    thing = whole_thing(snapshot)
    rql.require_quick(predicates, thing)
    return [rql.evaluate(rql.resolve_times(predicate, now), thing) for predicate in predicates]


def _may_compare(
    subjects: Sequence[str], enforcer: Enforcer, predicate: rql.Predicate, state: Mapping[str, Any]
) -> bool:
    """Whether the subjects may read every field of a condition, whatever its values in the thing are."""
    return all(_is_readable(subjects, enforcer, field.path, state) for field in rql.fields(predicate))


def _is_readable(subjects: Sequence[str], enforcer: Enforcer, path: Segments, state: Mapping[str, Any]) -> bool:
    if path[0] in ALWAYS_VISIBLE["thing"]:
        return enforcer.partial(subjects, READ, "thing:/")
    if path[0] == METADATA:
        # As `Enforcer.view_metadata`: readers of the whole part may read its metadata.
        return enforcer.unrestricted(subjects, READ, f"thing:{format_pointer(owner_of(path[1:], state))}")
    if path[:2] != ("features", "*"):
        return enforcer.unrestricted(subjects, READ, f"thing:{format_pointer(path)}")
    # Every feature: those that the policy names, and any other.
    return enforcer.has(subjects, READ, "thing:/features") and all(
        enforcer.unrestricted(subjects, READ, f"thing:{format_pointer(('features', feature, *path[2:]))}")
        for feature in (*enforcer.named_below(subjects, READ, "thing:/features"), "*")
    )
