"""Streams that are published over Streamr and read over reactive-streams-io, in one process."""

from __future__ import annotations

from typing import Any

from tests.support.in_process.reactive_streams_io import RsioHarness, source
from tests.support.in_process.streamr import StreamrHarness


async def add_rsio_connection(streamr_harness: StreamrHarness) -> RsioHarness:
    """Return a connection of reactive-streams-io clients that may read the same streams."""
    return RsioHarness(source("in", "streamr:pump"), options={"streams": tank_streams()}, beside=streamr_harness)


def tank_streams() -> dict[str, Any]:
    policy = {"policyId": "acme.site:tanks"}
    return {"tank": policy, "a/b": policy, "tanks": {**policy, "partitions": 4}}
