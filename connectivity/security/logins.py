"""Slows down those who guess tokens, by address.

A wrong token delays the response: a tenth of a second, doubled each time, four seconds at most, and is logged. While an
address has many delayed responses it gets none of its tokens checked, so that parallel guessing is no faster.
"""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Callable
from typing import Final

import structlog
from cachetools import FIFOCache

log = structlog.get_logger(__name__)

LONGEST_DELAY: Final = 4.0
_FIRST_DELAY: Final = 0.1
_FORGET_SECONDS: Final = 300.0
_MAX_PEERS: Final = 4_096


class FailedLoginDelays:
    """Delays after wrong tokens, by address, in a table of bounded size."""

    def __init__(self, now: Callable[[], float] = time.monotonic, *, most_delayed: int, **about: str) -> None:
        """`most_delayed`: how many responses to one address may wait; `about` is added to log lines."""
        self._now = now
        self._most_delayed = most_delayed
        self._about = about
        self._peers: FIFOCache[str, _Peer] = FIFOCache(_MAX_PEERS)

    def is_full(self, address: str) -> bool:
        """Whether this address has the most delayed responses, so that no more tokens are checked."""
        peer = self._peers.get(address)
        return peer is not None and peer.waiting >= self._most_delayed

    def record_failure(self, address: str) -> float:
        """A wrong token came from here: how many seconds its answer waits. Call `record_answer` afterwards."""
        peer = self._peers.get(address)
        if peer is None or (self._now() - peer.last > _FORGET_SECONDS and not peer.waiting):
            peer = _Peer()
        self._peers[address] = peer
        peer.last = self._now()
        peer.failures += 1
        peer.waiting += 1
        if peer.failures & (peer.failures - 1) == 0:
            # Log the first, second, fourth, … failure: visible without filling the log.
            log.warning("invalid token received", address=address, times=peer.failures, **self._about)
        return min(_FIRST_DELAY * (1 << min(peer.failures - 1, 16)), LONGEST_DELAY)

    def record_answer(self, address: str) -> None:
        """Note that a delayed request was answered."""
        if (peer := self._peers.get(address)) is not None:
            peer.waiting = max(peer.waiting - 1, 0)


class _Peer:
    __slots__ = ("failures", "last", "waiting")

    def __init__(self) -> None:
        self.failures, self.waiting, self.last = 0, 0, 0.0


def network_of(host: str) -> str:
    """Return the address for which attempts are counted: IPv4 address or IPv6 network.

    Texts that are no address, which proxies may forward, are one address.
    """
    try:
        found = ipaddress.ip_address(host)
    except ValueError:
        return ""
    if isinstance(found, ipaddress.IPv6Address):
        return str(found.ipv4_mapped or ipaddress.ip_network((found, 64), strict=False))
    return str(found)
