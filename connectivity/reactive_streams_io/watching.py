"""Who may still read what he has subscribed to (reactive-streams-io, names).

A client is let in once and may read a stream for years. Whenever policies change, the streams that this may concern are
judged again, before anybody is sent what was committed together with the change: what may not be read any longer fails with
what somebody is told who asks anew. Since the time of a subject may also end without an event, everybody is judged again
once a minute, some in each second. Searches judge each of their pages themselves.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Protocol, TypeAlias

from connectivity.store import Store
from connectivity.twins.base import World
from connectivity.twins.dependents import Dependents
from connectivity.twins.enforcer import READ
from connectivity.twins.streaming import may_stream
from connectivity.twins.streams import concerning, may_use_stream
from mappings.errors import Fault
from mappings.ids import EntityId, EntityType
from mappings.streamr.names import read_partition_name, stream_of
from mappings.streamr.options import StreamOptions, StreamrOptions

ROUND = 60
"""After so many sweeps everybody was judged again."""

StreamsThere: TypeAlias = Mapping[str, StreamOptions]


class Reader(Protocol):
    """A session with streams, each known by a number."""

    subjects: tuple[str, ...]
    streams_there: StreamsThere

    def entity(self, stream: int) -> EntityId | None:
        """What a stream is of; None where it is over."""

    def fail(self, stream: int, fault: Fault) -> None: ...


def not_readable(entity: EntityId, subjects: tuple[str, ...], streams: StreamsThere, world: World) -> Fault | None:
    """Why these subjects may not read all of something; None where they may."""
    if entity.type is not EntityType.STREAM:
        return may_stream(entity, subjects, world)
    stream = _own(entity)
    known = streams.get(stream)
    if known is not None and may_use_stream(stream, str(known.policy), READ, subjects, world):
        return None
    return Fault(403, "rsio:stream.notallowed", f"READ on 'stream:/{stream}' is needed.")


class Watching:
    """Keeps an eye on what is subscribed to."""

    def __init__(self, store: Store, world: World) -> None:
        self._store = store
        self._world = world
        self._watched: Dependents[tuple[Reader, int]] = Dependents()

    def __repr__(self) -> str:
        return f"<Watching {self._watched!r}>"

    def note(self, reader: Reader, stream: int, entity: EntityId) -> None:
        """Somebody has subscribed to something. Raises StoreUnavailable."""
        if not len(self._watched):
            self._store.authorities.watch(self._changed)
        name = _own(entity) if entity.type is EntityType.STREAM else stream_of(entity)
        options = StreamrOptions(streams=reader.streams_there)
        self._watched.note((reader, stream), concerning(name, options, self._world))

    def forget(self, reader: Reader, stream: int) -> None:
        """A stream is over."""
        self._watched.forget((reader, stream))
        if not len(self._watched):
            self._store.authorities.leave(self._changed)

    def sweep(self) -> None:
        """About once a second: judge some again, whatever has changed. Raises StoreUnavailable."""
        self._judge(self._watched.turn(ROUND))

    def _changed(self, entities: Collection[EntityId]) -> None:
        self._judge(list(self._watched.of(entities)))

    def _judge(self, watched: Iterable[tuple[Reader, int]]) -> None:
        for reader, stream in watched:
            if (entity := reader.entity(stream)) is None:
                self.forget(reader, stream)
            elif (fault := not_readable(entity, reader.subjects, reader.streams_there, self._world)) is not None:
                reader.fail(stream, fault)
            else:
                self.note(reader, stream, entity)


def _own(entity: EntityId) -> str:
    """The stream of a partition."""
    found = read_partition_name(str(entity))
    return found[0] if found is not None else str(entity)
