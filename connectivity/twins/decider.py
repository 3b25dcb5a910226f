"""Decides commands: command, sender and present states in; events and response, or a refusal, out.

`decide` is pure: it changes nothing, waits for nothing, and queries only snapshots and permissions. The caller stores the
events, makes them visible to later decisions, and sends the response. `things.py` and `policies.py` decide about their
entities; this module checks headers, path and entity type first.

A retrieve of the past is decided in two steps (`connectivity.twins.retrieval`): `needed_past` returns the state that it
needs, and `decide` responds with that state.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Final, Protocol

from connectivity.twins import paths
from connectivity.twins.context import CommandContext, CurrentStateLookup, Decision, StateLookup, TwinLimits, decision
from connectivity.twins.errors import refusal
from connectivity.twins.incarnations import EntityLives
from connectivity.twins.permission_checks import CHECK_PERMISSIONS, check_permissions
from connectivity.twins.policies import decide_policy
from connectivity.twins.policy_values import with_subject
from connectivity.twins.preconditions import LIVE_CONDITION
from connectivity.twins.retrieval import (
    REVISION,
    TIMESTAMP,
    SeveralThings,
    asks_for_past,
    past_query,
    retrieve_several,
    unknown_past,
)
from connectivity.twins.things import decide_thing
from mappings.ids import EntityId, EntityType
from mappings.model.headers import size_of
from mappings.model.signals import Command, Headers
from mappings.timestamps import utc_text
from spark_store.records import PastQuery, PastState, Snapshot

__all__ = ["LIVE_CONDITION", "Decider", "Decision", "StateLookup", "asks_for_past", "decide", "needed_past"]


NO_NAME: Final = "_"
"""The name placeholder in topics about several entities; no entity can have this name."""


def decide(
    command: Command,
    subjects: Sequence[str],
    world: StateLookup,
    now: str,
    limits: TwinLimits | None = None,
    past: PastState | None = None,
) -> Decision:
    """Decide `command`, sent by `subjects` at `now`.

    The first subject is the originator. `now` is UTC with six digits, as in `Event.timestamp`. `past` is the state that a
    retrieve of the past returns. Raises TwinError if the command is refused.
    """
    case = _case(command, subjects, world, now, limits or TwinLimits(), past)
    if command.entity.type is EntityType.POLICY:
        return check_permissions(case) if command.entity.name == NO_NAME else decide_policy(case)
    if command.entity.name == NO_NAME:
        several = retrieve_several(case)
        while several.encode_more():
            pass
        return decision([], several.complete())
    return decide_thing(case)


def needed_past(
    command: Command, subjects: Sequence[str], world: StateLookup, now: str, limits: TwinLimits | None = None
) -> PastQuery | None:
    """Return the past state that a retrieve needs; None if the present answers it. Raises TwinError."""
    case = _case(command, subjects, world, now, limits or TwinLimits(), None)
    if command.entity.name == NO_NAME:
        raise case.refuse(
            "header.notsupported", next(name for name in (REVISION, TIMESTAMP) if name in command.headers)
        )
    return past_query(case)


def _case(
    command: Command, subjects: Sequence[str], world: StateLookup, now: str, limits: TwinLimits, past: PastState | None
) -> CommandContext:
    if command.entity.name == NO_NAME:
        _check_several(command)
    # At most this size is never too large: the limit of a value is that of a thing and a policy together.
    if command.value is not None and len(command.value) > limits.thing:
        _check_value(command, command.value, limits)
    _check_headers(command, subjects, limits)
    address = paths.address(command.entity, command.path)
    case = CommandContext(command, tuple(subjects), world, now, limits, address, past)
    return with_subject(case) if address.resource.part == "subject" else case


def _check_several(command: Command) -> None:
    """Refuse the name placeholder, except in a command about several entities."""
    entity = command.entity
    known = CHECK_PERMISSIONS if entity.type is EntityType.POLICY else "retrieve"
    if command.action != known or command.path not in ("", "/"):
        raise refusal(f"{entity.type.group}:id.invalid", entity, command.path, f"'{entity}'")


def _check_value(command: Command, value: bytes, limits: TwinLimits) -> None:
    """Refuse a value that is too large for any entity, because it would take long to read."""
    # Six bytes of an escaped character are one at least.
    if (size := len(value) - 5 * value.count(rb"\u")) > limits.value:
        type, detail = command.entity.type, f"found {size} bytes, expected at most {limits.value}"
        raise refusal(f"{type.group}:{type.value}.toolarge", command.entity, command.path, detail)


def _check_headers(command: Command, subjects: Sequence[str], limits: TwinLimits) -> None:
    headers, entity, path = command.headers, command.entity, command.path
    if (size := size_of(headers)) > limits.headers:
        detail = f"found {size} characters, expected at most {limits.headers}"
        raise refusal("headers.too.large", entity, path, detail)
    if len(subjects) > limits.subjects:
        detail = f"found {len(subjects)} subjects, expected at most {limits.subjects}"
        raise refusal("headers.too.large", entity, path, detail)
    if LIVE_CONDITION in headers and entity.type is EntityType.THING:
        _check_live_condition(command, headers)


def _check_live_condition(command: Command, headers: Headers) -> None:
    """Refuse to ask a device for anything but the present of one thing."""
    if command.action != "retrieve":
        raise refusal("things:live.channelcondition.notallowed", command.entity, command.path)
    if command.entity.name == NO_NAME or REVISION in headers or TIMESTAMP in headers:
        raise refusal("header.notsupported", command.entity, command.path, LIVE_CONDITION)


class States(Protocol):
    """Returns the present states, and what is known beside them."""

    @property
    def lives(self) -> EntityLives:
        """As `StateLookup.lives`."""

    def snapshot(self, entity: EntityId) -> Snapshot | None:
        """As `StateLookup.snapshot`."""


class Decider:
    """`decide` with a world, a clock and limits at hand."""

    def __init__(
        self,
        states: States,
        *,
        now: Callable[[], datetime],
        limits: TwinLimits | None = None,
    ) -> None:
        self.limits = limits or TwinLimits()
        self.now = now
        self.world: StateLookup = CurrentStateLookup(states.snapshot, self._timestamp, lives=states.lives)

    def decide(self, command: Command, subjects: Sequence[str]) -> Decision:
        """As the function `decide`. Raises TwinError."""
        return decide(command, subjects, self.world, utc_text(self.now()), self.limits)

    def retrieve_several(self, command: Command, subjects: Sequence[str]) -> SeveralThings:
        """Decide a command about several things, and return its response in parts. Raises TwinError."""
        return retrieve_several(_case(command, subjects, self.world, self._timestamp(), self.limits, None))

    def needed_past(self, command: Command, subjects: Sequence[str]) -> PastQuery | None:
        """As the function `needed_past`. Raises TwinError."""
        return needed_past(command, subjects, self.world, self._timestamp(), self.limits)

    def show_past(self, command: Command, subjects: Sequence[str], past: PastState | None) -> Decision:
        """Respond to a retrieve with its past state; None: not known. Raises TwinError."""
        now = self._timestamp()
        if past is None:
            raise unknown_past(_case(command, subjects, self.world, now, self.limits, None))
        return decide(command, subjects, self.world, now, self.limits, past)

    def _timestamp(self) -> str:
        return utc_text(self.now())
