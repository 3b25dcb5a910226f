"""The messages of a resend from a list: a simple reference for the protocol's options.

Every reader of a store must return the same messages.
"""

from __future__ import annotations

from collections.abc import Sequence

from mappings.streams.entry import All, EntrySelection, FromTime, Last, OffsetRange, StreamEntry


def chosen(messages: Sequence[StreamEntry], selection: EntrySelection) -> list[StreamEntry]:
    """Of the messages of one partition, in the order of their offsets, those that are wanted."""
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
