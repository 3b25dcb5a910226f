"""Session handlers are found by the names of their codecs' modules."""

from __future__ import annotations

import pytest

from connectivity.sessions import PROTOCOLS
from connectivity.sessions.base import SessionHandler
from mappings.mappers import codec_names
from tests.support.in_process.service import ConnectionHarness

pytestmark = pytest.mark.usefixtures("harnesses")


async def test_a_handler_is_found_by_the_name_of_its_codec() -> None:
    handlers = ConnectionHarness().handlers
    assert [*handlers] == [name for name in codec_names() if name in handlers] == ["reactive_streams_io", "streamr"]
    assert all(isinstance(handler, SessionHandler) for handler in handlers.values())


def test_most_protocols_need_no_handler() -> None:
    assert set(PROTOCOLS) < set(codec_names())
    assert "base" not in PROTOCOLS
