"""Ends streams whose permission has been revoked (reactive-streams-io, names).

`connectivity.authorization.revalidation` decides when to check again. A stream fails with the error that a new subscription
would get. Searches check permissions for each page themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, TypeAlias

from connectivity.authorization.enforcer import READ
from connectivity.authorization.revalidation import AccessDependencies, AccessRevalidation
from connectivity.store.store import Store
from connectivity.twins.access import concerning, may_stream, may_use_stream
from connectivity.twins.context import StateLookup
from mappings.errors import Fault
from mappings.ids import EntityId, EntityType
from mappings.streams.options import StreamDefinition
from mappings.streams.stream_id import parse_partition_name, stream_id_of

if TYPE_CHECKING:
    from connectivity.sessions.reactive_streams_io.streams import SessionStreams

StreamsThere: TypeAlias = Mapping[str, StreamDefinition]


def not_readable(
    entity: EntityId, subjects: tuple[str, ...], streams: StreamsThere, world: StateLookup
) -> Fault | None:
    """Return why these subjects may not read; None if they may."""
    if entity.type is not EntityType.STREAM:
        return may_stream(entity, subjects, world)
    stream = _stream_of_partition(entity)
    known = streams.get(stream)
    if known is not None and may_use_stream(stream, known, READ, subjects, world):
        return None
    return Fault(403, "rsio:stream.notallowed", f"READ permission on 'stream:/{stream}' is required.")


class ReaderRevalidation(AccessRevalidation["tuple[SessionStreams, int]"]):
    """Checks the permissions of streams again, each identified by session and number."""

    def __init__(self, store: Store, world: StateLookup, now: Callable[[], datetime]) -> None:
        super().__init__(store.policy_changes, now)
        self._world = world

    def concerning(self, judged: tuple[SessionStreams, int]) -> AccessDependencies:
        reader, stream = judged
        if (entity := reader.entity(stream)) is None:
            return AccessDependencies()
        name = _stream_of_partition(entity) if entity.type is EntityType.STREAM else stream_id_of(entity)
        return concerning(name, reader.streams_there, self._world)

    def recheck(self, found: Collection[tuple[SessionStreams, int]]) -> None:
        for judged in found:
            reader, stream = judged
            if (entity := reader.entity(stream)) is None:
                self.forget(judged)
            elif (fault := not_readable(entity, reader.subjects, reader.streams_there, self._world)) is not None:
                reader.fail(stream, fault)
            else:
                self.note(judged)


def _stream_of_partition(entity: EntityId) -> str:
    """The stream of a partition."""
    found = parse_partition_name(str(entity))
    return found[0] if found is not None else str(entity)
