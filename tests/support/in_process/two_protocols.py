"""Streams that are published over Streamr and read over reactive-streams-io, in one process."""

from __future__ import annotations

from typing import Any

from tests.support.in_process.reactive_streams_io import Quay, source
from tests.support.in_process.streamr import Tank


async def quay_beside(tank: Tank) -> Quay:
    """Clients of the same streams, who may read them."""
    return Quay(source("in", "streamr:pump"), options={"streams": tank_streams()}, beside=tank)


def tank_streams() -> dict[str, Any]:
    policy = {"policyId": "acme.site:tanks"}
    return {"tank": policy, "a/b": policy, "tanks": {**policy, "partitions": 4}}
