"""The names by which redeliveries of messages without a message ID are recognized.

A message with a correlation ID is named by it and by its payload. One without any ID gets a number when it arrives first. A
broker redelivers in order, and what it redelivers is the end of what it has delivered over a link: so the redeliveries of a
queue are compared with the end of what each earlier link brought and was carried out, and each that fits gets the name of
its first delivery. "On", "off", "on" are three commands, also when the third one is redelivered and was not carried out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from itertools import groupby
from time import time_ns

from connectivity.transports.base import KnownNames

_DIGEST = 32
_NUMBER = 20
_RECENT = 10_000_000_000
"""Nanoseconds: deliveries that came so long before the last one were acknowledged in time."""


class UnsettledNames:
    """The names of unsettled deliveries with a correlation ID and no message ID.

    One correlation ID may occur in several commands, so the payload is part of the name; of several unsettled deliveries
    with the same ID and payload, all but the first are numbered. They are redelivered in order and get the same names.
    """

    __slots__ = ("_counts",)

    def __init__(self) -> None:
        self._counts: dict[str, list[int]] = {}
        """Common part of the name → number of deliveries since all were settled, number of unsettled ones."""

    def __len__(self) -> int:
        return len(self._counts)

    def delivery_name(self, correlation: str, payload: bytes) -> tuple[str, str]:
        """Return the part of the name shared with equal deliveries, and the delivery's own name."""
        digest = blake2b(payload, digest_size=16).hexdigest()
        common = f"amqp:{correlation}:{digest}"
        counts = self._counts.setdefault(common, [0, 0])
        counts[0] += 1
        counts[1] += 1
        return common, f"{common}:{counts[0]}" if counts[0] > 1 else common

    def ended(self, common: str) -> None:
        """Record that one of these deliveries has ended, with any outcome."""
        counts = self._counts[common]
        counts[1] -= 1
        if not counts[1]:
            del self._counts[common]


class NumberedNames:
    """The names that a link gives to deliveries of one queue without an ID, in order of arrival."""

    __slots__ = ("_link", "_number", "prefix")

    def __init__(self, queue: str) -> None:
        # A message ID cannot make such a name.
        self.prefix = f"amqp#{queue}#"
        self._link = f"{time_ns():0{_NUMBER}}"
        self._number = 0

    def first(self, payload: bytes) -> str:
        """Return the name of a first delivery."""
        self._number = max(self._number + 1, time_ns())
        digest = blake2b(payload, digest_size=_DIGEST // 2).hexdigest()
        return f"{self.prefix}{self._link}.{self._number:0{_NUMBER}}:{digest}"

    def again(self, payloads: Sequence[bytes], known: KnownNames) -> list[str]:
        """Return the names of redeliveries: those of their first deliveries, or new ones."""
        names = [self.first(payload) for payload in payloads]
        renamed = self._name_requeued(names, self._own(known.requeued))
        unclear = [position for position in range(len(names)) if position not in renamed]
        requeued = set(renamed.values())
        carried_out = [name for name in self._own(known.carried_out) if name not in requeued]
        links = [list(of_link) for _, of_link in groupby(carried_out, key=self._link_of)]
        # A queue keeps its order, so the redeliveries of an earlier link come first. The others are then compared with
        # each link alone: a queue may have lost its order in a crash.
        together = [(earlier, links[number:]) for number, earlier in enumerate(links)]
        for earlier, others in (*together, *((earlier, [earlier]) for earlier in links)):
            brought = {_digest_of(name) for link in others for name in link}
            positions = [position for position in unclear if _digest_of(names[position]) in brought]
            claimed = dict(self._claimed(earlier, names, positions))
            renamed |= claimed
            unclear = [position for position in unclear if position not in claimed]
        return [renamed.get(position, name) for position, name in enumerate(names)]

    def _name_requeued(self, names: Sequence[str], requeued: Sequence[str]) -> dict[int, str]:
        """Return the names of requeued deliveries that come again, by position; the oldest one first."""
        by_digest: dict[str, list[str]] = {}
        for name in requeued:
            by_digest.setdefault(_digest_of(name), []).append(name)
        return {
            position: found.pop(0) for position, name in enumerate(names) if (found := by_digest.get(_digest_of(name)))
        }

    def _claimed(
        self, earlier: Sequence[str], names: Sequence[str], positions: Sequence[int]
    ) -> Iterator[tuple[int, str]]:
        """Yield the redeliveries that are the end of what a link brought, by position, if that is clear.

        `positions`: those of the commands to compare with. Others were not carried out, like retrieves.
        """
        newest = self._number_of(earlier[-1])
        earlier = [name for name in earlier if newest - self._number_of(name) <= _RECENT]
        digests = [_digest_of(name) for name in earlier]
        run = [_digest_of(names[position]) for position in positions]
        sizes = [size for size in range(1, min(len(run), len(earlier)) + 1) if digests[-size:] == run[:size]]
        # If it is ambiguous which of equal commands come again, they are carried out, rather than left out.
        if len(sizes) == 1:
            yield from zip(positions, earlier[-sizes[0] :], strict=False)

    def _own(self, names: Iterable[str]) -> list[str]:
        """Return the names of this queue's deliveries in order, each without the part of its signal."""
        start = len(self.prefix)
        length = start + 2 * _NUMBER + 2 + _DIGEST
        own = {name[:length] for name in names if name.startswith(self.prefix) and len(name) >= length}
        return sorted(name for name in own if name[start:][:_NUMBER].isdigit() and name[start + _NUMBER] == ".")

    def _link_of(self, name: str) -> str:
        return name[len(self.prefix) :][:_NUMBER]

    def _number_of(self, name: str) -> int:
        return int(name[len(self.prefix) + _NUMBER + 1 :][:_NUMBER])


def _digest_of(name: str) -> str:
    return name[-_DIGEST:]
