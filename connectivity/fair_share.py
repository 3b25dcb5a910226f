"""Divides places between users and their peers, so that newcomers find some.

A peer may take a place while the places of the peer and of its user together are fewer than the free ones. So a single peer
gets a third of all places, and the more peers and users there are, the fewer each of them gets. No place is reserved.
"""

from __future__ import annotations

from collections.abc import Hashable
from weakref import WeakValueDictionary


class FairShare:
    """The places that users share: at most `most` are taken."""

    __slots__ = ("_users", "most", "used")

    def __init__(self, most: int) -> None:
        self.most = most
        self.used = 0
        self._users: WeakValueDictionary[Hashable, UserShare] = WeakValueDictionary()

    def __repr__(self) -> str:
        return f"<FairShare, {self.used} of {self.most}, {len(self._users)} users>"

    def peer(self, user: Hashable, peer: Hashable) -> PeerShare:
        """Return the places of a peer. They are forgotten with the last reference to them."""
        if (user_share := self._users.get(user)) is None:
            user_share = self._users[user] = UserShare()
        if (peer_share := user_share.peers.get(peer)) is None:
            peer_share = user_share.peers[peer] = PeerShare(self, user_share)
        return peer_share


class UserShare:
    """The places of one user."""

    __slots__ = ("__weakref__", "peers", "used")

    def __init__(self) -> None:
        self.used = 0
        self.peers: WeakValueDictionary[Hashable, PeerShare] = WeakValueDictionary()


class PeerShare:
    """The places of one peer of a user."""

    __slots__ = ("__weakref__", "total", "used", "user")

    def __init__(self, total: FairShare, user: UserShare) -> None:
        self.total = total
        self.user = user
        self.used = 0

    @property
    def has_room(self) -> bool:
        """Whether the peer may take another place."""
        total = self.total
        return self.used + self.user.used < total.most - total.used

    def take(self, count: int = 1) -> None:
        self.used += count
        self.user.used += count
        self.total.used += count

    def give_back(self, count: int = 1) -> None:
        self.used -= count
        self.user.used -= count
        self.total.used -= count
