"""Fixtures for tests of the service's inside."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.support.in_process.running_connection import Running
from tests.support.in_process.service import Site


@pytest.fixture
async def sites() -> AsyncIterator[list[Site]]:
    """Every site that is made; each has a store, and a store has a thread."""
    Site.made.clear()
    yield Site.made
    for made in Site.made:
        await made.close()


@pytest.fixture
async def site(sites: list[Site]) -> Site:
    """A site with a lamp."""
    made = Site()
    await made.has_lamp()
    return made


@pytest.fixture
async def runs() -> AsyncIterator[None]:
    """Connections that are ended when the test is."""
    Running.made.clear()
    yield
    for running in Running.made:
        await running.end()
