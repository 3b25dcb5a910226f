"""Keys of clients and their subjects (Streamr protocol, permissions).

A key has the subject that the operator gave it; without a key it is `streamr:anonymous`. An unknown key is refused, never
treated as anonymous. Only SHA-256 fingerprints of keys are stored, and they are compared in constant time.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Container, Iterable, Mapping

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
