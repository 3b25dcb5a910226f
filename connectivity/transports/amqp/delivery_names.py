"""The names by which redeliveries of messages without a message ID are recognized.

A message with a correlation ID is named by it and by its payload. One without any ID gets a number when it arrives first. A
broker redelivers in order, and what it redelivers is the end of what it has delivered: so the redeliveries of one queue are
compared with the end of the deliveries that were carried out, and each that fits gets the name of its first delivery. "On",
"off", "on" are three commands, also when the third one is redelivered and was not carried out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import blake2b
from itertools import count
from time import time_ns

_DIGEST = 32
_NUMBER = 20


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
    """The names of the deliveries of one queue that have no ID, in the order of their arrival."""

    __slots__ = ("_numbers", "prefix")

    def __init__(self, queue: str) -> None:
        self.prefix = f"amqp:#{queue}#"
        self._numbers = count(time_ns())

    def first(self, payload: bytes) -> str:
        """Return the name of a first delivery."""
        digest = blake2b(payload, digest_size=_DIGEST // 2).hexdigest()
        return f"{self.prefix}{next(self._numbers):0{_NUMBER}}:{digest}"

    def again(self, payloads: Sequence[bytes], known: Iterable[str]) -> list[str]:
        """Return the names of redeliveries: those of their first deliveries, or new ones.

        `known`: the names of signals that were carried out, in any order.
        """
        length = len(self.prefix) + _NUMBER + 1 + _DIGEST
        # Several signals of one delivery have names that begin alike.
        earlier = sorted({name[:length] for name in known if name.startswith(self.prefix)})
        digests = [name[-_DIGEST:] for name in earlier]
        names = [self.first(payload) for payload in payloads]
        # Others were not carried out, like retrieves.
        places = [place for place, name in enumerate(names) if name[-_DIGEST:] in set(digests)]
        run = [names[place][-_DIGEST:] for place in places]
        fitting = next((size for size in range(min(len(run), len(earlier)), 0, -1) if digests[-size:] == run[:size]), 0)
        for place, name in zip(places, earlier[len(earlier) - fitting :], strict=False):
            names[place] = name
        return names
