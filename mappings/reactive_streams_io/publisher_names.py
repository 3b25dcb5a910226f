"""Publisher strings: `segment/segment?key=value&key=value` (reactive-streams-io, names).

    things/<thingId>/history     History     from, to | from-ts, to-ts, filter, fields, follow, extra-fields, project, pack
    things/<thingId>/events      Events      filter, fields, extra-fields, project, pack
    policies/<policyId>/history  History     from, to | from-ts, to-ts
    things/search                Search      filter, options, fields, namespaces, unit
    streams/<id>/<partition>     Stream      resend_all | resend_last | resend_from, resend_to | resend_from_time, follow
    ingest/<name>                Ingest
    tck/range, never, fail, fixed, big       the test publishers, if they are enabled

All take `enc`. Segments and values are percent-encoded UTF-8; a plus sign is a plus sign. Encoding and parsing are inverse.
Filters and options are checked elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TypeAlias
from urllib.parse import quote

from mappings.errors import DecodeError, Fault
from mappings.ids import EntityId, EntityType, parse_entity_id
from mappings.reactive_streams_io.limits import UNBOUNDED
from mappings.texts import shorten
from mappings.timestamps import parse_instant

_LITERAL = "!*'(),:$@;"
"""Valid characters in a segment besides letters, digits and `-._~`."""

_LITERAL_IN_VALUES = _LITERAL + "/?="
_SEGMENT = re.compile(r"(?:[A-Za-z0-9\-._~!*'(),:$@;+]|%[0-9A-Fa-f]{2})+")
_VALUE = re.compile(r"(?:[A-Za-z0-9\-._~!*'(),:$@;+/?=]|%[0-9A-Fa-f]{2})*")
_KEY = re.compile(r"[a-z0-9_-]+")
_WHOLE = re.compile(r"-?[0-9]+")
_MOST_DIGITS = len(str(UNBOUNDED))
"""Longer numbers would take long to read."""
_ESCAPE = re.compile(rb"%([0-9A-Fa-f]{2})")

PACKS = {"i32": 4, "i64": 8, "f32": 4, "f64": 8}
"""The number types of projections, and their sizes in bytes."""

_EPOCH = datetime(1970, 1, 1)
ENCODINGS = ("json", "cbor")
UNITS = ("page", "thing")


@dataclass(frozen=True, slots=True)
class Projection:
    """One number of each event, at a JSON pointer, as elements of a fixed size."""

    pointer: str
    pack: str

    @property
    def element_size(self) -> int:
        return PACKS[self.pack]


@dataclass(frozen=True, slots=True)
class History:
    """The events of one entity.

    Revisions are inclusive and may be relative to the newest; instants are exclusive nanoseconds since 1970.
    """

    entity: EntityId
    from_revision: int | None = None
    to_revision: int | None = None
    after: int | None = None
    before: int | None = None
    filter: str | None = None
    fields: str | None = None
    follow: bool = False
    extra_fields: str | None = None
    projection: Projection | None = None
    encoding: str = "json"


@dataclass(frozen=True, slots=True)
class Events:
    """The future events of one thing."""

    entity: EntityId
    filter: str | None = None
    fields: str | None = None
    extra_fields: str | None = None
    projection: Projection | None = None
    encoding: str = "json"


@dataclass(frozen=True, slots=True)
class SearchName:
    """The things that a filter finds; an element is a page of them, or one (`unit`)."""

    filter: str | None = None
    options: str | None = None
    fields: str | None = None
    namespaces: str | None = None
    unit: str = "page"
    encoding: str = "json"


@dataclass(frozen=True, slots=True)
class StreamName:
    """One partition of a stream.

    At most one selection of earlier messages, then future ones (`follow`). `since` is in milliseconds since 1970.
    """

    id: str
    partition: int
    all: bool = False
    last: int | None = None
    from_offset: int | None = None
    to_offset: int | None = None
    since: int | None = None
    follow: bool = True
    encoding: str = "json"


@dataclass(frozen=True, slots=True)
class IngestName:
    """A stream of commands that the service subscribes to at its client."""

    name: str
    encoding: str = "json"


@dataclass(frozen=True, slots=True)
class SyntheticName:
    """A test publisher: `range`, `never`, `fail`, `fixed` or `big`, with its numbers."""

    kind: str
    count: int = 0
    size: int = 0
    encoding: str = "json"


Name: TypeAlias = History | Events | SearchName | StreamName | IngestName | SyntheticName

_TEST_PUBLISHERS = {
    "range": {"n": "count"},
    "never": {},
    "fail": {"after": "count"},
    "fixed": {"n": "count", "size": "size"},
    "big": {"bytes": "size"},
}
"""A test publisher → its parameters, and the members of its name."""

LARGEST_TEST_PAYLOAD = 1 << 26
"""The bytes of the one element of `tck/big`: enough to be too large."""


def parse(text: str, *, with_test_publishers: bool = False) -> Name:
    """Parse a publisher string; `with_test_publishers` includes the test publishers.

    Raises DecodeError: 404 for an unknown name, 400 for other errors.
    """
    path, has_parameters, rest = text.partition("?")
    segments = [_segment(segment) for segment in path.split("/")]
    parameters = _Parameters(_pairs(rest) if has_parameters else {})
    name = _parse_segments(segments, parameters, with_test_publishers)
    parameters.expect_none()
    return name


def write(name: Name) -> str:
    """The publisher string of a name."""
    match name:
        case History(entity):
            segments = [entity.type.group, str(entity), "history"]
            given: dict[str, object] = {
                "from": name.from_revision,
                "to": name.to_revision,
                "from-ts": _instant_text(name.after),
                "to-ts": _instant_text(name.before),
                "filter": name.filter,
                "fields": name.fields,
                "follow": name.follow or None,
                "extra-fields": name.extra_fields,
                **_projection_parameters(name.projection),
            }
        case Events(entity):
            segments = ["things", str(entity), "events"]
            given = {
                "filter": name.filter,
                "fields": name.fields,
                "extra-fields": name.extra_fields,
                **_projection_parameters(name.projection),
            }
        case SearchName():
            segments = ["things", "search"]
            given = {
                "filter": name.filter,
                "options": name.options,
                "fields": name.fields,
                "namespaces": name.namespaces,
                "unit": None if name.unit == UNITS[0] else name.unit,
            }
        case StreamName():
            segments = ["streams", name.id, str(name.partition)]
            given = {
                "resend_all": name.all or None,
                "resend_last": name.last,
                "resend_from": name.from_offset,
                "resend_to": name.to_offset,
                "resend_from_time": name.since,
                "follow": None if name.follow is (name.to_offset is None) else name.follow,
            }
        case IngestName():
            segments, given = ["ingest", name.name], {}
        case SyntheticName():
            segments = ["tck", name.kind]
            given = {key: getattr(name, member) for key, member in _TEST_PUBLISHERS[name.kind].items()}
    if name.encoding != ENCODINGS[0]:
        given["enc"] = name.encoding
    pairs = "&".join(
        f"{key}={quote(_value_text(value), safe=_LITERAL_IN_VALUES)}"
        for key, value in given.items()
        if value is not None
    )
    path = "/".join(quote(segment, safe=_LITERAL) for segment in segments)
    return f"{path}?{pairs}" if pairs else path


def _parse_segments(segments: list[str], parameters: _Parameters, with_test_publishers: bool) -> Name:
    match segments:
        case ["things", id, "history"]:
            return _history(_entity(EntityType.THING, id), parameters)
        case ["policies", id, "history"]:
            return _policy_history(_entity(EntityType.POLICY, id), parameters)
        case ["things", id, "events"]:
            return Events(
                _entity(EntityType.THING, id),
                parameters.text("filter"),
                parameters.text("fields"),
                parameters.text("extra-fields"),
                _projection(parameters),
                parameters.encoding(),
            )
        case ["things", "search"]:
            return SearchName(
                parameters.text("filter"),
                parameters.text("options"),
                parameters.text("fields"),
                parameters.text("namespaces"),
                parameters.one_of("unit", UNITS),
                parameters.encoding(),
            )
        case ["streams", id, partition]:
            return _stream(id, _number("partition", partition), parameters)
        case ["ingest", name]:
            return IngestName(name, parameters.encoding())
        case ["tck", kind] if with_test_publishers and kind in _TEST_PUBLISHERS:
            return _synthetic(kind, parameters)
        case _:
            raise DecodeError(
                Fault(404, "rsio:publisher.notfound", f"There is no publisher {shorten('/'.join(segments))!r}.")
            )


def _history(entity: EntityId, parameters: _Parameters) -> History:
    return History(
        entity,
        *_range(parameters),
        filter=parameters.text("filter"),
        fields=parameters.text("fields"),
        follow=parameters.flag("follow", False),
        extra_fields=parameters.text("extra-fields"),
        projection=_projection(parameters),
        encoding=parameters.encoding(),
    )


def _policy_history(entity: EntityId, parameters: _Parameters) -> History:
    return History(entity, *_range(parameters), encoding=parameters.encoding())


def _range(parameters: _Parameters) -> tuple[int | None, int | None, int | None, int | None]:
    first, last = parameters.whole("from"), parameters.whole("to")
    after, before = parameters.instant("from-ts"), parameters.instant("to-ts")
    if (first is not None or last is not None) and (after is not None or before is not None):
        raise _wrong("found a range of revisions and a range of times, expected only one range")
    return first, last, after, before


def _projection(parameters: _Parameters) -> Projection | None:
    pointer, pack = parameters.text("project"), parameters.text("pack")
    if pointer is None and pack is None:
        return None
    if pointer is None or pack is None:
        raise _wrong("found only one of project and pack, expected both")
    if not pointer.startswith("/"):
        raise _wrong(f"project: found {shorten(pointer)!r}, expected a JSON pointer")
    if pack not in PACKS:
        raise _wrong(f"pack: found {shorten(pack)!r}, expected one of {', '.join(PACKS)}")
    return Projection(pointer, pack)


def _stream(id: str, partition: int, parameters: _Parameters) -> StreamName:
    all = parameters.flag("resend_all", False)
    last, first = parameters.count("resend_last"), parameters.count("resend_from")
    to, since = parameters.count("resend_to"), parameters.count("resend_from_time")
    if all + (last is not None) + (first is not None) + (since is not None) > 1:
        raise _wrong("found several of resend_all, resend_last, resend_from and resend_from_time, expected only one")
    if to is not None and first is None:
        raise _wrong("found resend_to without resend_from, expected both")
    if to is not None and first is not None and to < first:
        raise _wrong(f"resend_to: found {to}, expected at least {first}")
    follow = parameters.flag("follow", to is None)
    if follow and to is not None:
        raise _wrong("found both follow=true and resend_to, expected only one")
    return StreamName(id, partition, all, last, first, to, since, follow, parameters.encoding())


def _synthetic(kind: str, parameters: _Parameters) -> SyntheticName:
    numbers = {member: parameters.count(key, needed=True) for key, member in _TEST_PUBLISHERS[kind].items()}
    count, size = numbers.get("count") or 0, numbers.get("size") or 0
    if kind == "fixed" and not 1 <= size <= 65_535:
        raise _wrong(f"size: found {size}, expected 1 to 65535")
    if size > LARGEST_TEST_PAYLOAD:
        raise _wrong(f"bytes: found {size}, expected at most {LARGEST_TEST_PAYLOAD}")
    return SyntheticName(kind, count, size, parameters.encoding())


class _Parameters:
    """The parameters of a publisher string. Those that no method has taken are unknown."""

    def __init__(self, pairs: Mapping[str, str]) -> None:
        self._left = dict(pairs)

    def text(self, key: str) -> str | None:
        return self._left.pop(key, None)

    def _as(self, key: str, read: Callable[[str, str], int]) -> int | None:
        found = self.text(key)
        return None if found is None else read(key, found)

    def whole(self, key: str) -> int | None:
        return self._as(key, _whole)

    def count(self, key: str, *, needed: bool = False) -> int | None:
        found = self._as(key, _number)
        if found is None and needed:
            raise _wrong(f"{key}: found nothing, expected a number")
        return found

    def instant(self, key: str) -> int | None:
        return self._as(key, _instant)

    def flag(self, key: str, default: bool) -> bool:
        found = self.text(key)
        if found not in (None, "true", "false"):
            raise _wrong(f"{key}: found {shorten(str(found))!r}, expected true or false")
        return default if found is None else found == "true"

    def one_of(self, key: str, values: tuple[str, ...]) -> str:
        """Return one of some values; the first one is the default."""
        found = self.text(key)
        if found is not None and found not in values:
            raise _wrong(f"{key}: found {shorten(found)!r}, expected one of {', '.join(values)}")
        return found or values[0]

    def encoding(self) -> str:
        return self.one_of("enc", ENCODINGS)

    def expect_none(self) -> None:
        """Raise DecodeError if a parameter is left."""
        if self._left:
            raise _wrong(f"found the unknown parameter {shorten(next(iter(self._left)))!r}")


def _pairs(text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for pair in text.split("&"):
        key, equals, value = pair.partition("=")
        if not equals or not _KEY.fullmatch(key):
            raise _wrong(f"found {shorten(pair)!r}, expected key=value")
        if key in found:
            raise _wrong(f"found {shorten(key)} twice, expected it once")
        if not _VALUE.fullmatch(value):
            raise _wrong(f"{shorten(key)}: found {shorten(value)!r}, expected a percent-encoded value")
        found[key] = _decode(value)
    return found


def _segment(text: str) -> str:
    if not _SEGMENT.fullmatch(text):
        raise _wrong(f"found the segment {shorten(text)!r}, expected percent-encoded text")
    return _decode(text)


def _decode(text: str) -> str:
    if "%" not in text:
        return text
    raw = _ESCAPE.sub(lambda found: bytes([int(found[1], 16)]), text.encode("ascii"))
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise _wrong(f"found {shorten(text)!r}, expected percent-encoded UTF-8") from error


def _entity(type: EntityType, text: str) -> EntityId:
    entity = parse_entity_id(type, text)
    if entity is None:
        raise _wrong(f"found {shorten(text)!r}, expected the id of a {type.value}")
    return entity


def _whole(key: str, text: str) -> int:
    if not _WHOLE.fullmatch(text):
        raise _wrong(f"{key}: found {shorten(text)!r}, expected a whole number")
    if len(text.removeprefix("-")) <= _MOST_DIGITS and -UNBOUNDED <= (value := int(text)) <= UNBOUNDED:
        return value
    limit = f"at least {-UNBOUNDED}" if text.startswith("-") else f"at most {UNBOUNDED}"
    raise _wrong(f"{key}: found {shorten(text)!r}, expected a whole number of {limit}")


def _number(key: str, text: str) -> int:
    value = _whole(key, text)
    if value < 0:
        raise _wrong(f"{key}: found {shorten(text)!r}, expected a number of at least 0")
    return value


def _instant(key: str, text: str) -> int:
    instant = parse_instant(text)
    if instant is None:
        raise _wrong(f"{key}: found {shorten(text)!r}, expected an instant such as 2030-01-15T07:31:42Z")
    return instant


def _instant_text(instant: int | None) -> str | None:
    if instant is None:
        return None
    seconds, fraction = divmod(instant, 1_000_000_000)
    written = (_EPOCH + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%S")
    return written.rjust(19, "0") + (f".{fraction:09d}".rstrip("0") if fraction else "") + "Z"


def _projection_parameters(projection: Projection | None) -> dict[str, object]:
    return {} if projection is None else {"project": projection.pointer, "pack": projection.pack}


def _value_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _wrong(message: str) -> DecodeError:
    return DecodeError(Fault(400, "rsio:publisher.invalid", message))
