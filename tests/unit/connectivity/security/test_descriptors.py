"""Listeners leave some file descriptors to everything else."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import pytest

from connectivity.security.descriptors import is_reserved, raise_limit


@contextmanager
def limits(soft: int, hard: int) -> Iterator[list[tuple[int, int]]]:
    """A system with these limits; yields the limits that are set."""
    found: list[tuple[int, int]] = []
    with (
        patch.object(resource, "getrlimit", lambda _: (soft, hard)),
        patch.object(resource, "setrlimit", lambda _, both: found.append(both)),
    ):
        yield found


@pytest.mark.parametrize(
    ("soft", "last"), [(1024, 767), (256, 191), (100_000, 99_743), (resource.RLIM_INFINITY, 1 << 40)]
)
def test_the_last_descriptors_are_reserved(soft: int, last: int) -> None:
    with limits(soft, soft):
        assert not is_reserved(last)
        assert is_reserved(last + 1) is (soft != resource.RLIM_INFINITY)


def test_the_service_uses_as_many_descriptors_as_the_system_allows() -> None:
    with limits(1024, 4096) as found:
        raise_limit()
    assert found == [(4096, 4096)]
