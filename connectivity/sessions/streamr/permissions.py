"""Permissions of requests (Streamr protocol, permissions)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, TypeAlias

from connectivity.authorization.enforcer import WRITE
from connectivity.twins.access import may_read_stream, may_use_stream, readable_history
from connectivity.twins.context import StateLookup
from mappings.errors import Fault
from mappings.ids import EntityId
from mappings.streamr import auth_keys, errors
from mappings.streamr.errors import ErrorSubject, RequestRejected
from mappings.streamr.options import StreamrOptions
from mappings.streamr.requests import Publish, Resend, SubscribeRequest
from mappings.streams.stream_id import ConfiguredStream, Stream, parse_stream_id, partition_id

_TWIN_PARTITIONS: Final = 1
"""The events of a thing or policy have one partition."""

AuthorizedRequest: TypeAlias = Publish | SubscribeRequest | Resend
"""The requests that need a permission."""


class StreamPermission(NamedTuple):
    """The permission of a request: the stream, its number of partitions, and the subjects.

    The subjects of the source come before those of the key. `newest`: the last offset of a twin that a resend may send.
    """

    stream: Stream
    partitions: int
    subjects: tuple[str, ...]
    newest: int | None = None


def admit(
    request: AuthorizedRequest, options: StreamrOptions, given: Sequence[str], world: StateLookup
) -> StreamPermission:
    """Return the permission of a request, for a sender with the `given` subjects.

    Raises RequestRejected, and StoreUnavailable if a policy cannot be read.
    """
    found = authorize(request, options, given, world)
    if isinstance(found, Fault):
        raise RequestRejected(found, error_subject(request))
    return found


def entity_at(stream: Stream, partition: int) -> EntityId:
    """Return the entity whose events are the messages of a partition."""
    return partition_id(stream.id, partition) if isinstance(stream, ConfiguredStream) else stream.entity


def error_subject(request: AuthorizedRequest) -> ErrorSubject:
    """Return the fields of a request that an error repeats."""
    if isinstance(request, Publish):
        return ErrorSubject(request.stream)
    return ErrorSubject(request.stream, request.partition, request.sub if isinstance(request, Resend) else None)


def authorize(
    request: AuthorizedRequest, options: StreamrOptions, given: Sequence[str], world: StateLookup
) -> StreamPermission | Fault:
    """Return the permission of a request, or the fault. `given` are the subjects of its source or peer.

    Only publishers learn that a stream does not exist, only readers that a partition does not. A command for a thing or
    policy is allowed with any known key: `decide` checks its permissions.
    """
    known = auth_keys.subjects_of(request.auth_key, options.keys, given)
    if known is None:
        return unknown_key(request)
    subjects = (*given, *sorted(known.difference(given)))
    stream = parse_stream_id(request.stream)
    definition = options.streams.get(request.stream) if isinstance(stream, ConfiguredStream) else None
    if stream is None or (isinstance(stream, ConfiguredStream) and definition is None):
        return unknown_stream(request)
    newest: int | None = None
    if isinstance(request, Publish):
        is_allowed = definition is None or may_use_stream(request.stream, definition, WRITE, subjects, world)
    elif isinstance(request, Resend) and not isinstance(stream, ConfiguredStream):
        visible = readable_history(stream.entity, subjects, world)
        is_allowed = not isinstance(visible, Fault)
        newest = None if isinstance(visible, Fault) else visible.last
    else:
        is_allowed = may_read_stream(stream, definition, subjects, world)
    if not is_allowed:
        return forbidden(request)
    partitions = _TWIN_PARTITIONS if definition is None else definition.partitions
    if not isinstance(request, Publish) and request.partition >= partitions:
        return errors.invalid_partition(request.stream, request.partition)
    return StreamPermission(stream, partitions, subjects, newest)


def may_follow(stream: str, options: StreamrOptions, subjects: Sequence[str], world: StateLookup) -> bool:
    """Whether these subjects may still read a stream."""
    found, definition = parse_stream_id(stream), options.streams.get(stream)
    return found is not None and may_read_stream(found, definition, subjects, world)


def unknown_key(request: AuthorizedRequest) -> Fault:
    """Return the error for an unknown key."""
    return errors.publish_unauthenticated(request.stream) if isinstance(request, Publish) else forbidden(request)


def unknown_stream(request: AuthorizedRequest) -> Fault:
    """Return the error for a stream that does not exist. Only publishers learn that."""
    return errors.stream_not_found(request.stream) if isinstance(request, Publish) else forbidden(request)


def forbidden(request: AuthorizedRequest) -> Fault:
    """Return the error for a missing permission."""
    match request:
        case Publish():
            return errors.publish_forbidden(request.stream)
        case SubscribeRequest():
            return errors.not_authorized(request.stream, request.partition)
        case Resend():
            return errors.resend_forbidden(request.stream, request.partition)
