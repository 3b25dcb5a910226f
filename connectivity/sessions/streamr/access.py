"""Ends live subscriptions whose permission has been revoked (Streamr protocol, permissions).

`connectivity.authorization.revalidation` decides when to check again. The session receives an error, and no further
messages.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from datetime import datetime

from connectivity.authorization.revalidation import AccessDependencies, AccessRevalidation
from connectivity.sessions.streamr.permissions import may_follow
from connectivity.sessions.streamr.sessions import StreamrSessions
from connectivity.store.store import Store
from connectivity.twins.access import concerning
from connectivity.twins.context import StateLookup
from mappings.streamr.sessions import SendFrame


class StreamRevalidation(AccessRevalidation[tuple[StreamrSessions, str]]):
    """Checks the permissions of followed streams again, for each registry of sessions."""

    def __init__(self, store: Store, world: StateLookup, now: Callable[[], datetime]) -> None:
        super().__init__(store.policy_changes, now)
        self._world = world

    def follow(self, registry: StreamrSessions, stream: str) -> None:
        """Watch the permission of a session that begins a live subscription. Raises StoreUnavailable."""
        if (registry, stream) not in self:
            self.note((registry, stream))

    def close(self, registry: StreamrSessions) -> None:
        """Forget the streams of a closed registry."""
        for followed in self.select(lambda followed: followed[0] is registry):
            self.forget(followed)

    def concerning(self, judged: tuple[StreamrSessions, str]) -> AccessDependencies:
        registry, stream = judged
        return concerning(stream, registry.options.streams, self._world)

    def recheck(self, found: Collection[tuple[StreamrSessions, str]]) -> None:
        streams: dict[StreamrSessions, set[str]] = {}
        for registry, stream in found:
            streams.setdefault(registry, set()).add(stream)
        for registry, concerned in streams.items():
            self._judge_in(registry, concerned)

    def _judge_in(self, registry: StreamrSessions, streams: set[str]) -> None:
        options, world = registry.options, self._world

        def may_read(stream: str, subjects: frozenset[str]) -> bool:
            return may_follow(stream, options, tuple(subjects), world)

        effects = registry.sessions.recheck(streams, may_read)
        registry.do([effect for effect in effects if not isinstance(effect, SendFrame)])
        # Requests from before the change are answered first.
        asyncio.get_running_loop().call_soon(
            registry.do, [effect for effect in effects if isinstance(effect, SendFrame)]
        )
        still = registry.sessions.followed_streams()
        for stream in streams:
            if stream in still:
                self.note((registry, stream))
            else:
                self.forget((registry, stream))
