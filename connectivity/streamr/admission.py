"""Whether a request is carried out: what it may (Streamr protocol, permissions).

Who may do what with a stream is judged by `connectivity.twins.streams`; here that becomes the answer to a request. Nothing
is kept: policies are compiled and kept by the world that is asked, which knows when one has changed.
"""

from __future__ import annotations

from collections.abc import Sequence

from connectivity.twins.base import World
from connectivity.twins.streams import Judged, Permit, judge
from mappings.errors import Fault
from mappings.ids import EntityId
from mappings.streamr.faults import About, RequestRefused
from mappings.streamr.names import Own, Place, partition_of
from mappings.streamr.options import StreamrOptions
from mappings.streamr.requests import Publish, Resend


def admit(request: Judged, options: StreamrOptions, given: Sequence[str], world: World) -> Permit:
    """What a request may, by somebody whom its source has `given` these subjects.

    Raises RequestRefused, and StoreUnavailable where a policy cannot be read.
    """
    found = judge(request, options, given, world)
    if isinstance(found, Fault):
        raise RequestRefused(found, about_of(request))
    return found


def entity_at(place: Place, partition: int) -> EntityId:
    """Whose events the messages of a partition are."""
    return partition_of(place.id, partition) if isinstance(place, Own) else place.entity


def about_of(request: Judged) -> About:
    """What an error about a request repeats of it."""
    if isinstance(request, Publish):
        return About(request.stream)
    return About(request.stream, request.partition, request.sub if isinstance(request, Resend) else None)
