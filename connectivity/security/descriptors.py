"""The limit of file descriptors, and those that listeners leave to everything else."""

from __future__ import annotations

import contextlib
import resource

_MOST_RESERVED = 256


def raise_limit() -> None:
    """Allow the process as many descriptors as the system lets it have."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # Some systems refuse a limit above one of their own.
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def is_reserved(descriptor: int) -> bool:
    """Whether a new descriptor is one of the last, which links to brokers, the API and files need.

    The system gives the lowest free one, so its number shows how many are in use.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft != resource.RLIM_INFINITY and descriptor >= soft - min(_MOST_RESERVED, soft // 4)
