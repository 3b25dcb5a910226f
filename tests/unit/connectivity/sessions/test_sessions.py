"""Session handlers are found by the names of their codecs' modules."""

from __future__ import annotations

from connectivity.sessions import load_handler
from connectivity.sessions.base import SessionHandler
from mappings.mappers import codec_names


def test_a_handler_is_found_by_the_name_of_its_codec() -> None:
    handler = load_handler("streamr")
    assert handler is not None
    assert issubclass(handler, SessionHandler)


def test_most_protocols_need_no_handler() -> None:
    assert [name for name in codec_names() if load_handler(name) is not None] == ["reactive_streams_io", "streamr"]
    assert load_handler("base") is None
