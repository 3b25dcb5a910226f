"""Keys of clients, and the permissions of requests (Streamr protocol, permissions).

A key has the subject that the operator gave it; without a key it is `streamr:anonymous`. An unknown key is refused, never
treated as anonymous. Only SHA-256 fingerprints of keys are stored, and they are compared in constant time.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Container, Iterable, Mapping

from mappings.errors import Fault
from mappings.streamr import errors
from mappings.streamr.requests import Publish, Request, Resend, SubscribeRequest

ANONYMOUS = "anonymous"
_ISSUER = "streamr"


def subject(name: str) -> str:
    """`streamr:<name>`, as policies name it."""
    return f"{_ISSUER}:{name}"


def fingerprint(key: str) -> str:
    """Return the fingerprint of a key, as operators configure it."""
    return hashlib.sha256(key.encode()).hexdigest()


def subjects_of(key: str | None, keys: Mapping[str, str], given: Iterable[str] = ()) -> frozenset[str] | None:
    """Return the subjects of a request: those `given` by its source or peer, and that of its key.

    None for an unknown key. `keys` are names and the fingerprints of their keys.
    """
    if key is None:
        return frozenset((*given, subject(ANONYMOUS)))
    wanted = fingerprint(key)
    # Every one is compared, found or not.
    found = [name for name, known in keys.items() if hmac.compare_digest(known, wanted)]
    return frozenset((*given, *map(subject, found))) if found else None


def has_lost_key(subjects: Iterable[str], given: Container[str], keys: Mapping[str, str]) -> bool:
    """Whether one of these subjects was that of a key that was removed.

    `given` are those of a source or peer.
    """
    of_keys = {subject(name) for name in (*keys, ANONYMOUS)}
    return any(each.startswith(f"{_ISSUER}:") and each not in of_keys and each not in given for each in subjects)


def permission_of(request: Request) -> str | None:
    """Return the permission that a request needs on its stream; None if it concerns its session alone."""
    if isinstance(request, Publish):
        return "WRITE"
    return "READ" if isinstance(request, SubscribeRequest | Resend) else None


def refused_as_unknown(request: Request) -> Fault:
    """The answer to a request with an unknown key."""
    return errors.publish_unauthenticated(request.stream) if isinstance(request, Publish) else refused(request)


def refused_as_missing(request: Request) -> Fault:
    """Return the error for a stream that does not exist. Only publishers learn that."""
    return errors.stream_not_found(request.stream) if isinstance(request, Publish) else refused(request)


def refused(request: Request) -> Fault:
    """Return the error for a missing permission. Raises ValueError for a request that needs none."""
    match request:
        case Publish():
            return errors.publish_forbidden(request.stream)
        case SubscribeRequest():
            return errors.not_authorized(request.stream, request.partition)
        case Resend():
            return errors.resend_forbidden(request.stream, request.partition)
        case _:
            raise ValueError(f"found {request!r}, expected a request that needs a permission")
