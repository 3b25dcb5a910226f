"""The messages of a resend from a list: a simple reference for the protocol's options.

Each reader of a store must return the same messages.
"""

from __future__ import annotations

from collections.abc import Sequence

from mappings.streams.entry import All, EntrySelection, FromTime, Last, OffsetRange, StreamEntry


def chosen(messages: Sequence[StreamEntry], selection: EntrySelection) -> list[StreamEntry]:
    """Return the selected messages of one partition, which are in the order of their offsets."""
    match selection:
        case All():
            return list(messages)
        case Last(count):
            return list(messages[max(0, len(messages) - count) :])
        case OffsetRange(start, end):
            return [each for each in messages if start <= each.offset and (end is None or each.offset <= end)]
        case FromTime(instant):
            first = next((index for index, each in enumerate(messages) if each.timestamp >= instant), len(messages))
            return list(messages[first:])
