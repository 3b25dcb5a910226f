"""The address and the mapped headers of a signal: compiled templates of a target or reply-target.

If the address has no value, nothing is published; a client's value that would make the address invalid is an error (Ditto
connections, header mapping and addresses).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from connectivity.connections.templates import ADDRESS_HEADER
from connectivity.transports.base import OutboundMessage
from mappings.ditto.writer import content_type_of
from mappings.errors import AddressNotAllowed, DecodeError, Fault
from mappings.json_values import parse_json
from mappings.model.envelope import UTF_8, ContentType, Envelope, from_utf8, parse_content_type
from mappings.model.field_selector import merge_objects
from mappings.model.json_pointer import MISSING, parse_pointer
from mappings.model.signals import Answer, Command, Inbound, LiveCommand, LiveEvent, Outbound, TwinEvent
from mappings.model.topic_path import topic_of
from mappings.placeholders.address import AddressPattern, resolve_address
from mappings.placeholders.header_mapping import HeaderMapping
from mappings.placeholders.template import PlaceholderContext, Scope, parse
from mappings.texts import shorten
from spark_store.history.event_view import changed_part
from spark_store.history.replay import is_delete_pattern

_CONTENT_TYPE = "content-type"

_WITH_FEATURES = (TwinEvent, LiveEvent, LiveCommand, Command)
"""Signals that may concern several features."""


class Destination(NamedTuple):
    """The address of a signal, and its mapped headers."""

    address: str
    headers: Mapping[str, str]

    def outgoing(self, envelopes: Sequence[Envelope], qos: int, order: str | None = None) -> list[OutboundMessage]:
        """Return the messages to publish; those with one `order` keep their order.

        A mapped header replaces one of the codec's; envelopes that share their headers go on sharing them. A mapped content
        type determines the charset of a text.
        """
        if not self.headers:
            return [OutboundMessage(self.address, envelope, qos, order) for envelope in envelopes]
        mapped = self.headers.get(_CONTENT_TYPE)
        content_type = parse_content_type(mapped) if mapped is not None else None
        if content_type is not None and content_type.charset == UTF_8:
            content_type = None
        merged: dict[int, dict[str, str]] = {}
        messages = []
        for envelope in envelopes:
            headers = merged.get(id(envelope.headers))
            if headers is None:
                headers = merged[id(envelope.headers)] = {**envelope.headers, **self.headers}
            payload = envelope.payload if content_type is None else _in_charset(envelope, content_type)
            messages.append(OutboundMessage(self.address, Envelope(payload, headers), qos, order))
        return messages


def _in_charset(envelope: Envelope, content_type: ContentType) -> bytes:
    """Return the payload, converted to the charset of a content type if it is text in UTF-8."""
    own = parse_content_type(envelope.headers.get(_CONTENT_TYPE, ""))
    is_text = (own.is_text or own.is_json) and own.charset == UTF_8
    return from_utf8(envelope.payload, content_type) if is_text else envelope.payload


class DestinationTemplate:
    """The templates of one reply-target or target. Raises PlaceholderError for invalid ones."""

    def __init__(
        self,
        address: str,
        header_mapping: Mapping[str, str],
        connection_id: str,
        now: Callable[[], datetime],
        scope: Scope = Scope.COMMON,
        pattern: AddressPattern | None = None,
        key_mark: str | None = None,
    ) -> None:
        """`pattern`: the addresses that are allowed; None: all. `key_mark`: see `ConnectionType.key_mark`."""
        self._connection_id = connection_id
        self._pattern = pattern
        self._key_mark = key_mark
        self._now = now
        self._address = parse(address, scope)
        mapping = dict(header_mapping)
        # Only MQTT has this header, and its addresses have no keys; other brokers carry it like any other.
        override = mapping.pop(ADDRESS_HEADER, None) if key_mark is None else None
        self._override = parse(override, scope) if override is not None else None
        self._mapping = HeaderMapping(mapping, scope)
        names = self._mapping.names.union(*(it.names for it in (self._address, self._override) if it is not None))
        self._needs_topic = any(name.startswith("topic:") for name in names)
        self._needs_features = "feature:id" in names
        templates = [self._address] if self._override is None else [self._address, self._override]
        self.constant: Destination | None = None
        """The destination of every message if no template has an expression."""
        if self._mapping.is_literal and all(template.literal is not None for template in templates):
            self.constant = self.resolve(PlaceholderContext())

    @property
    def beginning(self) -> str:
        """The constant text with which every address begins."""
        first = self._address.parts[0]
        return first if isinstance(first, str) else ""

    @property
    def is_fixed(self) -> bool:
        """Whether there is only one address."""
        return self._address.is_constant

    @property
    def has_override(self) -> bool:
        """Whether a mapped header replaces the address."""
        return self._override is not None

    @property
    def headers(self) -> frozenset[str]:
        """The headers that the address depends on, in lower case."""
        names = self._address.names if self._override is None else self._address.names | self._override.names
        return frozenset(name.removeprefix("header:") for name in names if name.startswith("header:"))

    def resolve(self, context: PlaceholderContext) -> Destination | None:
        """Return the destination; None if the address has no value.

        Raises UnsafeAddress, Unresolved, and AddressNotAllowed if the pattern does not allow the address.
        """
        address = resolve_address(self._address, context, self._key_mark)
        if address is None:
            return None
        if self._pattern is not None:
            _require_allowed(self._pattern, address, self._key_mark)
        mapped = self._mapping.apply(context)
        if self._override is not None and (override := resolve_address(self._override, context)) is not None:
            if self._pattern is not None:
                _require_allowed(self._pattern, override)
            mapped[ADDRESS_HEADER] = override
        return Destination(address, mapped)

    def context(self, signal: Outbound, *, has_topic: bool = False, has_features: bool = False) -> PlaceholderContext:
        """Return the placeholder values of a signal.

        Topic and features only if the templates or the caller need them.
        """
        return context_of(
            signal,
            self._now,
            self._connection_id,
            has_topic=has_topic or self._needs_topic,
            has_features=has_features or self._needs_features,
        )


def _require_allowed(pattern: AddressPattern, address: str, key_mark: str | None = None) -> None:
    if not pattern.allows(address, key_mark):
        raise AddressNotAllowed(
            Fault(
                400,
                "connectivity:message.sending.failed",
                f"The address '{shorten(address)}' is not allowed.",
                f"Expected an address that matches '{pattern.text}'.",
            )
        )


def context_of(
    signal: Outbound,
    now: Callable[[], datetime],
    connection_id: str | None = None,
    *,
    has_topic: bool = True,
    has_features: bool = True,
) -> PlaceholderContext:
    """Return the placeholder values of an outbound signal.

    Topic and features only if requested.
    """
    headers = signal.headers
    if isinstance(signal, Answer):
        content_type = content_type_of(signal)
        if content_type not in (None, headers.get("content-type")):
            # As the response itself says, whatever the content type of the command was.
            headers = {**headers, "content-type": content_type}
    path = getattr(signal, "path", None)
    # A signal has no subjects; the originator is in its headers.
    originator = headers.get("ditto-originator")
    return PlaceholderContext(
        headers=headers,
        entity=signal.entity,
        topic=topic_of(signal) if has_topic else None,
        resource_path=path,
        resource_type=signal.entity.type.value if path is not None and signal.entity is not None else None,
        feature_ids=features_of(signal) if has_features else (),
        thing_json=_ThingFromEvent(signal) if isinstance(signal, TwinEvent | LiveEvent) else None,
        connection_id=connection_id,
        subjects=(originator,) if originator is not None else (),
        now=now,
    )


class _ThingFromEvent(Mapping[str, Any]):
    """The thing in an event and its extra fields, built only if an expression needs it.

    Changed values override extra fields, which may be newer.
    """

    __slots__ = ("_document", "_event")

    def __init__(self, event: TwinEvent | LiveEvent) -> None:
        self._event = event
        self._document: Mapping[str, Any] | None = None

    @property
    def _thing(self) -> Mapping[str, Any]:
        if self._document is None:
            event = self._event
            value = MISSING if event.value is None else parse_json(event.value)
            changed = changed_part(event.entity.type, event.action, event.path, value)
            self._document = merge_objects(parse_json(event.extra), changed) if event.extra is not None else changed
        return self._document

    def __getitem__(self, name: str) -> Any:
        return self._thing[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._thing)

    def __len__(self) -> int:
        return len(self._thing)


def features_of(signal: Inbound | Outbound) -> tuple[str, ...]:
    """The features that a signal touches: the one that its path leads into, or all that it brings along."""
    path, value = getattr(signal, "path", None), getattr(signal, "value", None)
    if path not in ("/", "/features") or not isinstance(signal, _WITH_FEATURES) or value is None:
        return feature_ids(path)
    found = parse_json(value)
    if path == "/" and isinstance(found, Mapping):
        found = found.get("features")
    # A pattern of a merge is no ID, and which features it deletes is not known here.
    return tuple(name for name in found if not is_delete_pattern(name)) if isinstance(found, Mapping) else ()


def feature_ids(path: str | None) -> tuple[str, ...]:
    """Return the feature in a path such as `/features/lamp/properties/on`, or nothing."""
    try:
        segments = parse_pointer(path or "")
    except DecodeError:
        return ()
    return (segments[1],) if len(segments) > 1 and segments[0] == "features" else ()
