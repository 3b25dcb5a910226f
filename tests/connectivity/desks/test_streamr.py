"""Requests of the Streamr protocol at their desk: what each is answered, and what follows of it.

Case numbers are those of the cases for Streamr.
"""

from __future__ import annotations

import pytest

from tests.connectivity.tank import (
    Tank,
    offsets,
    publish,
    resend,
    subscribe,
    subscribed,
)

pytestmark = pytest.mark.usefixtures("sites")


async def test_cases_s01_to_s04_a_subscriber_is_told_so_and_sent_what_is_published() -> None:
    tank = await Tank.filled()
    assert await tank.asked("a", subscribe()) == [subscribed()]
    (first,) = await tank.asked("a", publish('{"v":1}'))
    assert first == [0, 0, "", [28, "tank", 0, first[3][3], 0, 1, None, 27, '{"v":1}']]
    (second,) = await tank.asked("a", publish('{"v":2}'))
    assert second[3][5:] == [2, 1, 27, '{"v":2}']
    assert (await tank.settled(3))[-1] == "d4"


async def test_case_r01_a_resend_brings_everything_between_resending_and_resent() -> None:
    tank = await Tank.filled(messages=4)
    frames = await tank.asked("a", resend(resend_all=True), 6)
    place = {"stream": "tank", "partition": 0, "sub": "a"}
    assert frames[0] == [0, 4, "", place]
    assert offsets(frames, 1) == [1, 2, 3, 4]
    assert {frame[2] for frame in frames[1:5]} == {"a"}
    assert frames[5] == [0, 5, "", place]
