"""The public clients' own protocol library and this service's read each other's messages alike.

It reads and writes every row of the vector files. The few rows with another result are listed with that result.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from mappings.streamr.frames import Error, write_frame
from mappings.streamr.requests import read_request
from tests.support.paths import TESTS
from tests.support.public_client import run_node
from tests.support.streamr_frames import read_frame
from tests.support.vectors import streamr as vectors

pytestmark = pytest.mark.node

READER = TESTS / "support" / "public_client" / "reader.js"

NOT_ITS_FRAMES = {
    "P04 with acceptNonJson": "it refuses content that is no JSON",
    "X05 string": "it refuses an error that is a bare text",
}
NOT_ITS_REQUESTS = {
    "unsubscribe with null names none": "it wants a partition",
    "S15": "it wants a partition",
    "R04": "it takes 0 for no option",
    "R17": "it takes 0 for no id",
    "on a thing neither ts nor pkey count": "it reads the time all the same",
    "B07": "it knows no disconnect",
}
READ_OTHERWISE = {
    "S11": "it unsubscribes from partition 0 where none is named",
    "zero in a text is a time": "it takes the text for the year 2000",
}


async def read_by_library(questions: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Let the library read each row; return its results."""
    process = await run_node(READER)
    out, problems = await process.communicate("".join(json.dumps(each) + "\n" for each in questions).encode())
    assert process.returncode == 0, problems.decode()
    return [json.loads(line) for line in out.splitlines()]


async def test_the_library_reads_every_frame_and_writes_the_same() -> None:
    rows = vectors.rows("frames")
    styles = [vectors.style(row) for row in rows]
    written = [write_frame(vectors.frame(row), style) for row, style in zip(rows, styles, strict=True)]
    answers = await read_by_library(
        [{"frame": each.decode(), "version": style.version} for each, style in zip(written, styles, strict=True)]
    )
    refused = {row["case"] for row, answer in zip(rows, answers, strict=True) if "refused" in answer}
    assert refused == set(NOT_ITS_FRAMES)
    for row, answer in zip(rows, answers, strict=True):
        if row["case"] in refused:
            continue
        ours, its = vectors.frame(row), read_frame(answer["written"].encode())
        # Of an error it keeps the text.
        assert its == (Error(ours.text) if isinstance(ours, Error) else ours), row["case"]


async def test_a_request_written_by_the_library_is_read_as_the_same_request() -> None:
    rows = vectors.rows("requests")
    answers = await read_by_library([{"request": vectors.payload(row).decode()} for row in rows])
    answered = list(zip(rows, answers, strict=True))
    assert {row["case"] for row, answer in answered if "refused" in answer} == set(NOT_ITS_REQUESTS)
    read = [(row, read_request(answer["written"].encode())) for row, answer in answered if "written" in answer]
    assert {row["case"] for row, request in read if request != vectors.request(row)} == set(READ_OTHERWISE)
