"""Topic names and topic filters, and which source a topic belongs to.

MQTT 3.1.1 §4.7 and MQTT 5 §4.7: `/` separates levels, `+` stands for one level, `#` for all that follow and for the level
above it; wildcards at the beginning do not match topics that begin with `$`. A shared filter `$share/<group>/<filter>`
receives what `<filter>` matches.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TypeAlias
from zlib import crc32

from mappings.text_cache import cached_if_short

SHARED = "$share/"
"""The beginning of a topic filter whose messages are shared by the clients of a group."""

MAX_STRING = 65535
"""The longest text that an MQTT packet can carry, in bytes of UTF-8."""

_PLANES = "".join(f"{chr(plane * 0x10000 + 0xFFFE)}{chr(plane * 0x10000 + 0xFFFF)}" for plane in range(17))
_UNFIT = re.compile(f"[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef{_PLANES}]")


def text_fault(text: str) -> str | None:
    """Return why this text cannot be sent in a packet, or None."""
    is_plain = text.isascii() and text.isprintable()
    if not is_plain and (unfit := _UNFIT.search(text)) is not None:
        return f"the character U+{ord(unfit[0]):04X} at position {unfit.start()}"
    if len(text) * 4 > MAX_STRING and (size := len(text.encode())) > MAX_STRING:
        return f"{size} bytes"
    return None


def replace_unfit(text: str) -> str:
    """Return the text with U+FFFD in place of each character that cannot be sent in a packet."""
    return _UNFIT.sub("\ufffd", text)


CACHED_TOPICS = 4096
HIGHEST_NUMBER = 268_435_455
"""The highest subscription identifier."""


def topic_fault(topic: str) -> str | None:
    """Return why this text is not a topic to publish to, or None."""
    if "+" in topic or "#" in topic:
        return "a wildcard"
    return text_fault(topic) if topic else "no characters"


def is_filter(address: str) -> bool:
    """Whether an address of a source has wildcards or a group, so that no message has this topic."""
    return "+" in address or "#" in address or address.startswith(SHARED)


def shared_filter(address: str, group: str) -> str:
    """Return the topic filter for the clients of a group; an address with a group keeps it."""
    return address if address.startswith(SHARED) else f"{SHARED}{group}/{address}"


def filter_fault(topic_filter: str) -> str | None:
    """Return why this text is not a topic filter, or None."""
    if not topic_filter:
        return "no characters"
    if (fault := text_fault(topic_filter)) is not None:
        return fault
    inner = topic_filter
    if topic_filter.startswith(SHARED):
        _, _, rest = topic_filter.partition("/")
        group, _, inner = rest.partition("/")
        if not group or not inner or "+" in group or "#" in group:
            return "a shared subscription without a group or a filter"
    levels = inner.split("/")
    if any("+" in level and level != "+" for level in levels):
        return "a `+` that does not fill a whole level"
    if any("#" in level for level in levels[:-1]) or ("#" in levels[-1] and levels[-1] != "#"):
        return "a `#` that does not fill the whole last level"
    return None


def matches(topic_filter: str, topic: str) -> bool:
    """Decide whether a topic matches a topic filter. Both must be valid."""
    if topic_filter.startswith(SHARED):
        topic_filter = topic_filter.split("/", 2)[2]
    if topic_filter == topic:
        return True
    filter_levels, topic_levels = topic_filter.split("/"), topic.split("/")
    if topic.startswith("$") and filter_levels[0] in ("+", "#"):
        return False
    for index, level in enumerate(filter_levels):
        if level == "#":
            return True
        if index == len(topic_levels):
            return False
        if level not in ("+", topic_levels[index]):
            return False
    return len(filter_levels) == len(topic_levels)


class Sources:
    """The subscriptions of all sources, and the sources that a topic belongs to.

    Frequent topics are cached. `groups` has the filters of each subscription by its number, in the order of subscribing. A
    broker of MQTT 5 may send one copy of a message for each filter that matches, with the number of its subscription. So
    that a source takes one copy, filters that overlap or belong to several sources have subscriptions of their own.
    """

    def __init__(self, filters: Sequence[Sequence[str]]) -> None:
        self._filters = [tuple(source) for source in filters]
        self.groups = _number(_group(self._filters), self._filters)
        self._numbers = {each: number for number, group in self.groups.items() for each in group}
        self.of = cached_if_short(CACHED_TOPICS)(self._of)
        """Returns the indexes of all sources with a filter that matches."""
        self._copies_of = cached_if_short(CACHED_TOPICS)(self._find_copies)

    def of_copy(self, topic: str, numbers: Sequence[int]) -> tuple[int, ...] | None:
        """Return the sources that take a copy with these numbers of subscriptions.

        None if no subscription with one of these numbers matches the topic.
        """
        copies = self._copies_of(topic)
        if len(numbers) == 1:
            return copies.get(numbers[0])
        found = [copies[number] for number in numbers if number in copies]
        return tuple(sorted({index for each in found for index in each})) if found else None

    def _of(self, topic: str) -> tuple[int, ...]:
        return tuple(
            index
            for index, filters in enumerate(self._filters)
            if any(matches(topic_filter, topic) for topic_filter in filters)
        )

    def _find_copies(self, topic: str) -> dict[int, tuple[int, ...]]:
        """Return the numbers of the subscriptions that match, and the sources that take each copy."""
        copies: dict[int, tuple[int, ...]] = {}
        for index, source in enumerate(self._filters):
            found = {self._numbers[each]: each for each in source if matches(each, topic)}
            for number in found:
                copies.setdefault(number, ())
            # Other members of a group may get the messages of a shared subscription.
            own = {number for number, each in found.items() if not each.startswith(SHARED)}
            # While subscriptions are made, a message may have no copy for a later one.
            for number in (next(each for each in self.groups if each in own),) if own else found:
                copies[number] += (index,)
        return copies


def _number(groups: Iterable[tuple[str, ...]], filters: Sequence[tuple[str, ...]]) -> dict[int, tuple[str, ...]]:
    """Return the groups by subscription identifiers.

    They depend on all filters of their sources, because those determine which copies a source takes: the messages that a
    broker has queued for other filters of an earlier document have other identifiers.
    """
    numbered: dict[int, tuple[str, ...]] = {}
    for group in groups:
        parts = (group, *(source for source in filters if group[0] in source))
        number = crc32("\n\n".join(map("\n".join, parts)).encode()) % HIGHEST_NUMBER
        while number + 1 in numbered:
            number = (number + 1) % HIGHEST_NUMBER
        numbered[number + 1] = group
    return numbered


_Tree: TypeAlias = dict[str, "_Tree"]
"""Topic filters by their levels, each with an `_END`."""

_END = "/"


def _group(filters: Sequence[Sequence[str]]) -> list[tuple[str, ...]]:
    """Return groups of filters that do not overlap, and have one source, or are alone."""
    users = Counter(each for source in filters for each in source)
    groups: dict[str, list[str]] = {}
    for source in filters:
        own: list[tuple[list[str], _Tree]] = []
        for each in source:
            if users[each] > 1:
                groups.setdefault(each, [each])
                continue
            levels = _levels(each)
            fitting = (found for found in own if not _overlaps(levels, found[1]))
            group, tree = next(fitting, ([], {}))
            if not group:
                groups[each] = group
                own.append((group, tree))
            group.append(each)
            for level in levels:
                tree = tree.setdefault(level, {})
            tree[_END] = {}
    return [tuple(group) for group in groups.values()]


def _levels(topic_filter: str) -> list[str]:
    if topic_filter.startswith(SHARED):
        topic_filter = topic_filter.split("/", 2)[2]
    return topic_filter.split("/")


def _overlaps(levels: Sequence[str], tree: _Tree) -> bool:
    """Decide whether a topic can match the filter of these levels and one in the tree."""
    nodes = [tree]
    for level in levels:
        if level == "#" or any("#" in node for node in nodes):
            return bool(nodes)
        if level == "+":
            nodes = [child for node in nodes for key, child in node.items() if key != _END]
        else:
            nodes = [node[key] for node in nodes for key in (level, "+") if key in node]
    return any(_END in node or "#" in node for node in nodes)
