"""What an event goes to targets with: the headers of the command that brought it about, and where that came from.

Headers that said how the command was to be carried out or answered mean nothing to those who hear of its event, and are
left out; the correlation id and whatever a client has added go along. Of the acknowledgements that were asked for, those
are named that others can give (Ditto protocol, headers of events).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from connectivity.acknowledgements import BUILT_IN
from mappings.headers import FIELDS
from mappings.signals import Headers
from spark_store.records import Cause

_OF_COMMANDS: Final = frozenset(row.name for row in FIELDS.values() if not row.is_written) | {
    "content-type",
    "entity-revision",
    "etag",
    "reply-to",
    "requested-acks",
    "response-required",
    "timeout",
    "version",
    "idempotency-key",
    "ditto-originator",
}


def cause_of(headers: Headers, labels: Sequence[str], connection_id: str, subjects: Sequence[str]) -> Cause:
    """The cause of the events of a command with these headers, which asks for these acknowledgements."""
    kept: dict[str, Any] = {name: value for name, value in headers.items() if name not in _OF_COMMANDS}
    if foreign := foreign_labels(labels):
        kept["requested-acks"] = foreign
    if subjects:
        kept["ditto-originator"] = subjects[0]
    return Cause(connection_id, kept)


def foreign_labels(labels: Sequence[str]) -> list[str]:
    """The labels that the service does not answer itself."""
    return [label for label in labels if label not in BUILT_IN]
