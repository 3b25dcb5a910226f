"""Fixtures for tests of the service's inside."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.support.in_process.running_connection import Running
from tests.support.in_process.service import ConnectionHarness


@pytest.fixture
async def harnesses() -> AsyncIterator[list[ConnectionHarness]]:
    """A list of all harnesses that a test makes, whose stores are closed at its end."""
    ConnectionHarness.made.clear()
    yield ConnectionHarness.made
    for made in ConnectionHarness.made:
        # A retry must not read a journal that is being closed.
        made.event_publisher.closed(made.connection.id)
    # The latest first: it may share the journal of an earlier one, whose store closes it in a thread.
    for made in reversed(ConnectionHarness.made):
        await made.close()


@pytest.fixture
async def harness(harnesses: list[ConnectionHarness]) -> ConnectionHarness:
    """A site with a lamp."""
    made = ConnectionHarness()
    await made.has_lamp()
    return made


@pytest.fixture
async def runs() -> AsyncIterator[None]:
    """Connections that are ended when the test is."""
    Running.made.clear()
    yield
    for running in Running.made:
        await running.end()
