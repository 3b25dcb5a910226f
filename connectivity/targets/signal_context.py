"""A signal with everything that several targets need to know about it, computed once.

An event may concern many targets: its parsed value, the policy of its thing, and the parts that certain subjects can read
are the same for many. A `SignalContext` is used by every `TopicFilter` and discarded within the same turn of the event loop:
it does not notice later changes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from enum import Enum
from typing import Any, Generic, TypeVar, cast

from msgspec.structs import replace

from connectivity.authorization.enforcer import DROP, Enforcer
from connectivity.targets.destination import context_of
from connectivity.twins.access import Visibility, may_receive, readable, view_of_path
from connectivity.twins.context import StateLookup
from connectivity.twins.incarnations import enforcer_at, last_ended, snapshot_enforcer
from connectivity.twins.retrieval import hidden
from mappings.ids import EntityType
from mappings.json_values import decode_value, encode_value
from mappings.model.field_selector import FieldSelection
from mappings.model.json_pointer import MISSING
from mappings.model.signals import Live, LiveCommand, LiveEvent, Message, TwinEvent
from mappings.placeholders.template import PlaceholderContext, Template
from mappings.timestamps import shorten_timestamp
from spark_store.history.event_view import changed_part
from spark_store.records import Snapshot

TWIN_EVENTS = "_/_/things/twin/events"

_TOPICS: Mapping[type, str] = {
    TwinEvent: TWIN_EVENTS,
    Message: "_/_/things/live/messages",
    LiveCommand: "_/_/things/live/commands",
    LiveEvent: "_/_/things/live/events",
}
_EVENTS = {"create": "created", "modify": "modified", "merge": "merged"}
_ACTIONS_WITH_VALUE = frozenset({"created", "modified", "merged"})


class SuppressionReason(Enum):
    """Why a target does not receive a signal."""

    TOPIC = "no topic of the target includes the signal"
    NAMESPACE = "the target's namespaces do not include the signal's"
    FILTER = "no filter of the target matches the signal"
    FORBIDDEN = "the target's subjects cannot read the signal"
    EMPTY = "the target's subjects cannot read any part of the signal"
    ENRICHMENT = "the target's extra fields are unavailable"
    EXPENSIVE = "the target's filter compares too much of long arrays or texts"

    @property
    def is_failure(self) -> bool:
        """Whether the signal may be one that the target asks for."""
        return self in (SuppressionReason.ENRICHMENT, SuppressionReason.EXPENSIVE)


S = TypeVar("S", bound=TwinEvent | Live)


class SubjectView(Generic[S]):
    """A signal as certain subjects can read it. `document` is the part of the thing that a filter sees."""

    __slots__ = ("_context", "_document", "_part", "_readable", "_signal", "_signal_context", "subjects")

    def __init__(self, signal_context: SignalContext[S], subjects: tuple[str, ...], part: Any) -> None:
        """`part`: the readable part of the parsed value; MISSING if the value is readable as it is."""
        self.subjects = subjects
        self._signal_context = signal_context
        self._part = part
        self._signal: S | None = signal_context.signal if part is MISSING else None
        self._context: PlaceholderContext | None = None
        self._document: dict[str, Any] | None = None
        self._readable: Mapping[str, Any] | None = None

    @property
    def signal(self) -> S:
        """The signal with the readable part of its value."""
        if self._signal is None:
            self._signal = _with(self._signal_context.signal, value=encode_value(self._part))
        return self._signal

    @property
    def context(self) -> PlaceholderContext:
        """The placeholder values of the readable signal."""
        if self._part is MISSING:
            return self._signal_context.context
        if self._context is None:
            self._context = context_of(self.signal, self._signal_context.now)
        return self._context

    def _operand(self, name: str, template: Template) -> Any:
        return (
            self._signal_context.operand(name, template) if self._part is MISSING else _value_of(template, self.context)
        )

    def document(self, operands: tuple[tuple[str, Template], ...] = ()) -> Mapping[str, Any]:
        """The document for filters, not to be changed. The `operands` are inserted under their names."""
        document = self._document
        if document is None:
            value = self._signal_context.value if self._part is MISSING else self._part
            document = self._document = self._signal_context.described_thing(value)
        for name, template in operands:
            if name not in document and (found := self._operand(name, template)) is not MISSING:
                document[name] = found
        return document

    def readable_thing(self, selection: FieldSelection) -> Mapping[str, Any] | None:
        """The readable thing after the signal, with extra fields; None if unknown, empty if deleted.

        The event of a deletion has the last state of the thing.
        """
        signal_context = self._signal_context
        if signal_context.is_end:
            return self._last_thing()
        snapshot = signal_context.snapshot
        if snapshot is None or snapshot.revision < getattr(signal_context.signal, "revision", 0):
            return None
        if snapshot.state is None or signal_context.is_past:
            return {}
        thing = self._read(snapshot.state)
        if not thing or not any(name.startswith("_") for name in selection):
            return thing
        return {**thing, **hidden(snapshot, selection, self.subjects, signal_context.world)}

    def _last_thing(self) -> Mapping[str, Any]:
        thing, event = self._read(self._signal_context.last_state), self._signal_context.signal
        if not thing or not isinstance(event, TwinEvent):
            return thing
        modified = shorten_timestamp(event.timestamp)
        beside = {"_namespace": event.entity.namespace, "_revision": event.revision, "_modified": modified}
        return {**thing, **beside}

    def _read(self, state: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the readable part of the thing's state, empty for nothing."""
        if self._readable is None:
            enforcer = self._signal_context.enforcer
            seen = enforcer.view(state, "thing:/", self.subjects) if state and enforcer is not None else DROP
            self._readable = {} if seen is DROP else seen
        return self._readable

    def add_extra_fields(self, extra: Mapping[str, Any]) -> S:
        return _with(self.signal, extra=encode_value(extra)) if extra else self.signal


class SignalContext(Generic[S]):
    """One signal and the present state in which it is judged."""

    __slots__ = (
        "_context",
        "_enforcer",
        "_is_past",
        "_last",
        "_operands",
        "_snapshot",
        "_value",
        "_views",
        "now",
        "signal",
        "topic",
        "world",
    )

    def __init__(self, signal: S, world: StateLookup, now: Callable[[], datetime], last: bytes | None = None) -> None:
        """`last`: the state of a thing, as JSON, before the event that deletes it."""
        self.signal: S = signal
        self.world = world
        self.now = now
        self._last = last
        self.topic = _TOPICS[type(signal)] if signal.entity.type is EntityType.THING else None
        """The topic of such signals in targets; None if there is none."""
        self._views: dict[tuple[str, ...], SubjectView[S] | SuppressionReason] = {}
        self._operands: dict[str, Any] = {}
        self._context: PlaceholderContext | None = None
        self._value: Any = ...
        self._snapshot: Any = ...
        self._enforcer: Any = ...
        self._is_past: bool | None = None

    @property
    def snapshot(self) -> Snapshot | None:
        if self._snapshot is ...:
            self._snapshot = self.world.snapshot(self.signal.entity)
        return cast("Snapshot | None", self._snapshot)

    @property
    def enforcer(self) -> Enforcer | None:
        """The permissions on the thing. A deleted one keeps those of its last policy, as it was then."""
        if self._enforcer is ...:
            snapshot, signal = self.snapshot, self.signal
            if isinstance(signal, TwinEvent) and self.is_past:
                self._enforcer = enforcer_at(signal.entity, signal.revision, self.world)
            else:
                self._enforcer = None if snapshot is None else snapshot_enforcer(snapshot, self.world)
        return cast("Enforcer | None", self._enforcer)

    @property
    def is_past(self) -> bool:
        """Whether the signal is an event of a thing that was deleted since, even if it was created again."""
        if self._is_past is None:
            signal, snapshot = self.signal, self.snapshot
            self._is_past = (
                isinstance(signal, TwinEvent)
                and snapshot is not None
                and signal.revision < snapshot.revision
                # Times may be equal if the clock was set back.
                and (snapshot.state is None or signal.timestamp <= snapshot.created)
                and signal.revision <= last_ended(signal.entity, self.world)
            )
        return self._is_past

    @property
    def is_end(self) -> bool:
        """Whether the signal is the event of the thing's deletion."""
        signal = self.signal
        return isinstance(signal, TwinEvent) and signal.action == "deleted" and signal.path == "/"

    @property
    def last_state(self) -> Mapping[str, Any]:
        """The state of the thing before its deletion; empty if it is not known."""
        return decode_value(self._last) if self._last is not None else {}

    @property
    def value(self) -> Any:
        """The parsed value; MISSING if there is none. Not to be changed."""
        if self._value is ...:
            self._value = MISSING if self.signal.value is None else decode_value(self.signal.value)
        return self._value

    @property
    def context(self) -> PlaceholderContext:
        """The placeholder values of the whole signal."""
        if self._context is None:
            self._context = context_of(self.signal, self.now)
        return self._context

    def operand(self, name: str, template: Template) -> Any:
        """Return the value of an operand of filters: a text, or several; MISSING for none."""
        found = self._operands.get(name)
        if found is None:
            found = self._operands[name] = _value_of(template, self.context)
        return found

    def described_thing(self, value: Any) -> dict[str, Any]:
        """Return a new document of the thing as far as the signal describes it with this value."""
        signal = self.signal
        action = getattr(signal, "action", "")
        action = _EVENTS.get(action, action) if not isinstance(signal, TwinEvent) else action
        is_telling = action in _ACTIONS_WITH_VALUE and not isinstance(signal, Message)
        document = changed_part(signal.entity.type, action, signal.path, value) if is_telling else {}
        document["thingId"] = signal.entity.id
        if isinstance(signal, TwinEvent):
            document["_revision"] = signal.revision
            document["_modified"] = signal.timestamp
        return document

    def visible_to(self, subjects: tuple[str, ...]) -> SubjectView[S] | SuppressionReason:
        """The signal as the subjects see it together, or why they do not."""
        found = self._views.get(subjects)
        if found is None:
            found = self._views[subjects] = self._see(subjects)
        return found

    def _see(self, subjects: tuple[str, ...]) -> SubjectView[S] | SuppressionReason:
        signal = self.signal
        if not isinstance(signal, TwinEvent):
            return (
                SubjectView(self, subjects, MISSING)
                if may_receive(signal, subjects, self.world)
                else SuppressionReason.FORBIDDEN
            )
        enforcer = self.enforcer
        much = view_of_path(enforcer, subjects, signal.path) if enforcer is not None else Visibility.NOTHING
        if enforcer is None or much is Visibility.NOTHING:
            return SuppressionReason.FORBIDDEN
        if much is Visibility.WHOLE or signal.value is None:
            return SubjectView(self, subjects, MISSING)
        part = readable(enforcer, subjects, signal.path, self.value)
        return SuppressionReason.EMPTY if part is DROP else SubjectView(self, subjects, part)


def _value_of(template: Template, context: PlaceholderContext) -> Any:
    """Return a text, or several; MISSING for none."""
    values = template.resolve(context).values
    return MISSING if not values else values[0] if len(values) == 1 else list(values)


def _with(signal: S, **members: bytes | None) -> S:
    changed: Any = signal
    return cast(S, replace(changed, **members))
