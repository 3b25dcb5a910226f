"""Desks are found by the names of their codecs' modules."""

from __future__ import annotations

from connectivity.sessions import load_desk
from connectivity.sessions.base import Desk
from mappings.mappers import codec_names


def test_a_desk_is_found_by_the_name_of_its_codec() -> None:
    desk = load_desk("streamr")
    assert desk is not None
    assert issubclass(desk, Desk)


def test_most_protocols_need_no_desk() -> None:
    assert [name for name in codec_names() if load_desk(name) is not None] == ["reactive_streams_io", "streamr"]
    assert load_desk("base") is None
