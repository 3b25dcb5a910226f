"""ConnectionStatus: keeps a feature that says until when a device behind a gateway is reachable.

Gateways such as Eclipse Hono add to each delivery when it was created (`creation-time`, milliseconds since 1970) and how
long the device stays reachable (`ttd`, seconds). This becomes a command on one feature, independent of the payload, so
another mapper must read the payload. Without these headers there is no command, and there is never a response. Ditto
connections, payload mapping.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from mappings.ditto.messages import json_bytes
from mappings.errors import PlaceholderError
from mappings.ids import EntityId, EntityType, parse_entity_id
from mappings.mappers.base import Codec, TemplateMapper, blocklist, require
from mappings.model.envelope import Envelope
from mappings.model.json_pointer import format_pointer
from mappings.model.signals import Command, Inbound
from mappings.options import Option, template
from mappings.placeholders.template import Template
from mappings.placeholders.values import PlaceholderContext
from mappings.timestamps import utc_text

DEFINITION = "org.eclipse.ditto:ConnectionStatus:1.0.0"
FOREVER = "9999-12-31T23:59:59Z"

_CREATED, _LEFT = "creation-time", "ttd"
_HEADERS = {"response-required": False, "requested-acks": []}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_WHOLE = re.compile(r"-?[0-9]{1,18}", re.ASCII)
_FEATURE_ID = re.compile(r"[^/\x00-\x1F\x7F]+")

_UNTIL_THEN, _FOR_EVER = 0, -1
"""Values of `ttd` that are no length of time."""


class ConnectionStatusCodec(TemplateMapper):
    """Stores in a feature the period in which a device behind a gateway is reachable.

    The mapper reads the headers `creation-time` (milliseconds since 1970) and `ttd` (seconds) of a delivery, not its
    payload: list this mapper together with the mapper that reads the payload. A `ttd` above 0 sets `readySince` and
    `readyUntil` of the feature's `status`, -1 means forever, and 0 sets only `readyUntil`. The mapper ignores deliveries
    without these headers, or with an invalid thing ID. The mapper produces no outgoing messages.
    """

    options = (
        Option("thingId", template, "The id of the thing: a template.", "{{ header:device_id }}", is_required=True),
        Option("featureId", template, "The id of the feature: a template.", "ConnectionStatus", "ConnectionStatus"),
        blocklist(),
    )
    needs_definition = True
    reads_headers = frozenset({_CREATED, _LEFT})

    def use(self, options: Mapping[str, Any]) -> None:
        self._thing: Template | None = options.get("thingId")
        self._feature: Template | None = options.get("featureId")

    def decode_with(self, envelope: Envelope, session: Any, context: PlaceholderContext) -> Sequence[Inbound]:  # noqa: ARG002
        created, left = _time(envelope.header(_CREATED)), _number(envelope.header(_LEFT))
        if created is None or left is None or left < _FOR_EVER or self._thing is None or self._feature is None:
            return ()
        try:
            thing = parse_entity_id(EntityType.THING, require(self._thing, context))
            feature = require(self._feature, context)
        except PlaceholderError:
            return ()
        if thing is None or not _FEATURE_ID.fullmatch(feature):
            return ()
        command = _command(thing, feature, created, left)
        return (command,) if command is not None else ()


def _command(thing: EntityId, feature: str, created: datetime, left: int) -> Command | None:
    """Return the command for `left` seconds; None if the calendar has no such time."""
    if left == _UNTIL_THEN:
        path = format_pointer(("features", feature, "properties", "status", "readyUntil"))
        return Command(thing, "modify", path, json_bytes(_format_time(created)), _HEADERS)
    try:
        until = FOREVER if left == _FOR_EVER else _format_time(created + timedelta(seconds=left))
    except OverflowError:
        return None
    status = {"readySince": _format_time(created), "readyUntil": until}
    value = {"definition": [DEFINITION], "properties": {"status": status}}
    return Command(thing, "modify", format_pointer(("features", feature)), json_bytes(value), _HEADERS)


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and _WHOLE.fullmatch(text) else None


def _time(text: str | None) -> datetime | None:
    milliseconds = _number(text)
    if milliseconds is None:
        return None
    try:
        return _EPOCH + timedelta(milliseconds=milliseconds)
    except OverflowError:
        return None


def _format_time(time: datetime) -> str:
    """ISO-8601 in UTC, with milliseconds where there are any."""
    precision = "milliseconds" if time.microsecond else "seconds"
    return utc_text(time, precision)


CODEC: Codec = ConnectionStatusCodec()
