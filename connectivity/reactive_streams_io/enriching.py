"""Events with fields of their thing beside them, for those who ask for `extra-fields` (reactive-streams-io, names).

The rules are those of targets (Ditto connections, enrichment), with one reader in the place of a target: fields are those of
the thing as it is after the event, or later, as far as the reader may see them. What is not there is left out, the end of a
thing has no fields, and a filter sees them together with what the event says.
"""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import quote, urlencode

import msgspec
import structlog

from connectivity.enrichment import ExtraFields
from connectivity.happening import TWIN_EVENTS, Kept, Present
from connectivity.interest import Interest
from connectivity.topics import EXTRA_FIELDS
from mappings.errors import PlaceholderError
from mappings.ids import EntityId
from mappings.reactive_streams_io.elements import EventWriter
from mappings.signals import Event, TwinEvent

log = structlog.get_logger(__name__)

_headers = msgspec.json.Decoder(dict[str, object]).decode


def enriched(
    entity: EntityId, fields: str, filter: str | None, subjects: tuple[str, ...], present: Present
) -> Callable[[Event], bytes | None]:
    """What writes the events of a thing that a filter lets pass, with these fields beside them.

    Raises ValueError for fields that cannot be understood, or that no thing has; QueryError for such a filter.
    """
    try:
        names = ExtraFields(fields).names
    except PlaceholderError as error:
        raise ValueError(error.fault.message) from error
    if unknown := sorted(names.difference(EXTRA_FIELDS)):
        raise ValueError(
            f"found extra-fields that begin with {unknown[0]!r}, expected one of {', '.join(EXTRA_FIELDS)}"
        )
    wanted = {"extraFields": fields} | ({} if filter is None else {"filter": filter})
    interest = Interest([f"{TWIN_EVENTS}?{urlencode(wanted, quote_via=quote)}"], subjects)
    writer = EventWriter(entity)

    def write(event: Event) -> bytes | None:
        judged = interest.judge(TwinEvent(*event[:6], headers=_headers(event.headers)), present)
        if isinstance(judged, Kept):
            if judged is Kept.ENRICHMENT:
                log.warning("an event was left out", entity=str(entity), revision=event.revision, reason=judged.value)
            return None
        return writer(event._replace(value=judged.value), judged.extra)

    return write
