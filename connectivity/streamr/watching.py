"""Who may still read what he follows (Streamr protocol, permissions).

A session is let in once and may follow a stream for years. Whenever policies change, those whom that may concern are judged
again, before anybody is sent what was committed together with the change: who may not read any longer is told so, and is
sent no more. Since the time of a subject may also end without an event, everybody is judged again once a minute, some in
each second.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable

from connectivity.store import Store
from connectivity.streamr.rooms import Room
from connectivity.twins.base import World
from connectivity.twins.dependents import Dependents
from connectivity.twins.streams import concerning, may_follow
from mappings.ids import EntityId, EntityType
from mappings.streamr.sessions import Say

ROUND = 60
"""After so many sweeps everybody was judged again."""


class Watching:
    """Keeps an eye on the streams that are followed, room by room."""

    def __init__(self, store: Store, world: World) -> None:
        self._store = store
        self._world = world
        self._followed: Dependents[tuple[Room, str]] = Dependents()

    def __repr__(self) -> str:
        return f"<Watching {self._followed!r}>"

    def follow(self, room: Room, stream: str) -> None:
        """Somebody in a room is about to follow a stream. Raises StoreUnavailable."""
        if (room, stream) in self._followed:
            return
        if not len(self._followed):
            self._store.authorities.watch(self._changed)
        self._followed.note((room, stream), concerning(stream, room.options, self._world))

    def close(self, room: Room) -> None:
        """The room is closed."""
        for followed in self._followed.those(lambda followed: followed[0] is room):
            self._forget(*followed)

    def sweep(self) -> None:
        """About once a second: judge some again, whatever has changed. Raises StoreUnavailable."""
        self._judge(self._followed.turn(ROUND))

    def _changed(self, entities: Collection[EntityId]) -> None:
        policies = {entity for entity in entities if entity.type is EntityType.POLICY}
        found = set(self._followed.of(policies))
        # A thing that is replaced as a whole, many times in a second perhaps, has the same policy as a rule.
        for room, stream in self._followed.of(set(entities) - policies):
            if concerning(stream, room.options, self._world) != self._followed.upon((room, stream)):
                found.add((room, stream))
        self._judge(found)

    def _judge(self, followed: Iterable[tuple[Room, str]]) -> None:
        streams: dict[Room, set[str]] = {}
        for room, stream in followed:
            streams.setdefault(room, set()).add(stream)
        for room, concerned in streams.items():
            self._judge_in(room, concerned)

    def _judge_in(self, room: Room, streams: set[str]) -> None:
        options, world = room.options, self._world

        def may_read(stream: str, subjects: frozenset[str]) -> bool:
            return may_follow(stream, options, subjects, world)

        effects = room.sessions.recheck(streams, may_read)
        room.do([effect for effect in effects if not isinstance(effect, Say)])
        # What was asked for before the change is answered first.
        asyncio.get_running_loop().call_soon(room.do, [effect for effect in effects if isinstance(effect, Say)])
        still = room.sessions.followed()
        for stream in streams:
            if stream in still:
                self._followed.note((room, stream), concerning(stream, options, world))
            else:
                self._forget(room, stream)

    def _forget(self, room: Room, stream: str) -> None:
        self._followed.forget((room, stream))
        if not len(self._followed):
            self._store.authorities.leave(self._changed)
