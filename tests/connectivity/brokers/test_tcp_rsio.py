"""reactive-streams-io through a TCP door: hellos, streams and goodbyes over real sockets, octet for octet.

Case numbers are those of the cases for reactive-streams-io. Hexadecimal digits are octets as they travel. What is sent in
one piece is sent one octet at a time, too: the same is heard.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.connectivity.brokers.landing import SERVER_HELLO, Landing, landing
from tests.connectivity.quay import H

RANGE = "11 0d 74 63 6b 2f 72 61 6e 67 65 3f 6e 3d"


@pytest.fixture
async def there() -> AsyncIterator[Landing]:
    async with landing() as made:
        yield made


async def test_the_complete_exchange_of_the_specification(there: Landing) -> None:
    caller = await there.caller()
    caller.say(H, f"{RANGE} 33 01 02")
    await caller.hears(SERVER_HELLO)
    await caller.hears("81 01 00 82 01 01 31 82 01 01 32")
    caller.say("12 01 05")
    await caller.hears("82 01 01 33 86 01")
    caller.say("03 00")
    assert await caller.goodbye() == "ok"
    assert list(there.quay.streams) == []
