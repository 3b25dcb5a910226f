"""Decides which sockets a listener accepts, from their numbers: in total and by address.

A socket is counted from its acceptance, before any handshake, until it has left. Addresses of IPv6 are counted by network.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

UNLIMITED = 0


@dataclass(frozen=True, slots=True)
class AdmissionLimits:
    """The limits of a listener; `UNLIMITED` for none of an address."""

    sockets: int
    per_address: int = UNLIMITED
    accepts: int = UNLIMITED
    """How many sockets of one address are accepted in a second."""


class Admission:
    """The sockets of a listener by address, and the sockets accepted in the present second."""

    def __init__(self, limits: AdmissionLimits) -> None:
        self._limits = limits
        self._count = 0
        self._sockets: Counter[str] = Counter()
        self._accepts: Counter[str] = Counter()
        self._second = 0

    def enter(self, address: str, now: float) -> str | None:
        """Count a socket of this address, or return why it is refused. `now` is in seconds."""
        if int(now) != self._second:
            self._second = int(now)
            self._accepts.clear()
        limits = self._limits
        if self._count >= limits.sockets:
            return "too many sockets"
        if limits.per_address and self._sockets[address] >= limits.per_address:
            return "too many sockets of one address"
        if limits.accepts and self._accepts[address] >= limits.accepts:
            return "too many sockets of one address in a second"
        self._accepts[address] += 1
        self._sockets[address] += 1
        self._count += 1
        return None

    def leave(self, address: str) -> None:
        """A counted socket has left."""
        self._count -= 1
        self._sockets[address] -= 1
        if not self._sockets[address]:
            del self._sockets[address]
