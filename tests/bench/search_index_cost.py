"""Measures the search index: its time in each modify, its size, and the time to create it.

Two paths through the service, from the bytes of a message to the confirm, without a network: the journal of one has an
index, the other journal has none. They process messages alternately, and the processor time of the process is compared.
Each modify changes one number of another thing, so with many things few of the written pages are cached.
"""

from __future__ import annotations

import asyncio
import gc
import random
import shutil
import statistics
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import uvloop

from connectivity.monitoring.prometheus import PrometheusRegistry
from mappings.ids import EntityId, EntityType
from mappings.model.signals import Event
from spark_store.journal.journal import Journal
from spark_store.maintenance.index_check import compare
from spark_store.records import Change
from spark_store.search import index_builder
from tests.bench.harness import FULL, STAMP, SUBJECT, Scale
from tests.bench.monitoring import Way
from tests.bench.report import Figure
from tests.support.connection_documents import policy_for
from tests.support.replayed import fold

THINGS = 100_000
TURNS = 40
COMMANDS = 250
CHUNK = 1000
MOST_COST = 0.3
POLICY = EntityId(EntityType.POLICY, "acme.bench", "policy")


def state(number: int) -> dict[str, Any]:
    """Return a thing of about a kilobyte: a device in a building, with some properties of each type."""
    return {
        "thingId": f"acme.bench:device-{number}",
        "policyId": str(POLICY),
        "definition": "acme:sensor:1.2.0",
        "attributes": {
            "serial": f"L-{number:08}",
            "room": f"room-{number % 500}",
            "floor": number % 40,
            "site": {
                "hall": "NSEW"[number % 4],
                "row": number % 100,
                "lat": 48 + number / 1e6,
                "lon": 11 + number / 1e6,
            },
            "tags": ["indoor", "sensor", f"batch-{number % 97}"],
            "note": "n" * 400,
            "installed": "2024-05-01T10:00:00Z",
        },
        "features": {
            "lamp": {
                "properties": {"on": number % 2 == 0, "level": number % 256, "color": {"r": number % 255, "g": 1}}
            },
            "sensor": {"properties": {"temperature": number % 400 / 10, "humidity": number % 100, "unit": "C"}},
            "link": {"properties": {"rssi": -(number % 90), "channel": number % 16, "since": "2024-05-01T10:00:00Z"}},
        },
    }


def created(number: int) -> Change:
    value = msgspec.json.encode(state(number))
    event = Event(EntityId(EntityType.THING, "acme.bench", f"device-{number}"), 1, STAMP, "created", "/", value, b"{}")
    return Change((event,), (fold([event]),))


def fill(path: Path, things: int, *, has_index: bool) -> float:
    """Create a journal of `things` things under one policy. Returns processor seconds per thing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rules = {"policyId": str(POLICY), "imports": {}, **policy_for(SUBJECT)}
    event = Event(POLICY, 1, STAMP, "created", "/", msgspec.json.encode(rules), b"{}")
    spent = 0.0
    with closing(Journal.open(path)) as journal:
        if not has_index:
            journal.within(lambda it: it.execute("UPDATE search_progress SET indexed = 0"))
        journal.append([Change((event,), (fold([event]),))])
        for first in range(0, things, CHUNK):
            changes = [created(number) for number in range(first, min(first + CHUNK, things))]
            begun = time.process_time()
            journal.append(changes)
            spent += time.process_time() - begun
    return spent / things


def commands(things: int, dice: random.Random) -> list[bytes]:
    """Return modifies of one number, each of another thing."""
    return [
        b'{"topic":"acme.bench/device-%d/things/twin/commands/modify","headers":{"correlation-id":"%d"},'
        b'"path":"/features/sensor/properties/temperature","value":%d.%d}'
        % (dice.randrange(things), number, dice.randrange(40), dice.randrange(1, 10))
        for number in range(COMMANDS)
    ]


def costs(folder: Path, scale: Scale = FULL, things: int = 0) -> list[Figure]:
    """Measure all figures with `things` things."""
    things, turns = things or scale.of(THINGS, 100), scale.of(TURNS, 2)
    paths = {has_index: folder / str(has_index) / "journal.db" for has_index in (True, False)}
    creating = {has_index: fill(path, things, has_index=has_index) for has_index, path in paths.items()}
    return [
        *_room(paths[True], things, creating),
        uvloop.run(_modifies(paths, things, turns)),
        *_made(paths[False], folder / "made.db", things),
    ]


async def _modifies(paths: dict[bool, Path], things: int, turns: int) -> Figure:
    ways = {
        has_index: await Way(path, PrometheusRegistry(), has_target=False).start() for has_index, path in paths.items()
    }
    dice = random.Random(things)
    spent: dict[bool, list[float]] = {True: [], False: []}
    took: dict[bool, list[float]] = {True: [], False: []}
    for turn in range(-min(4, turns), turns):
        payloads = commands(things, dice)
        # The order rotates, because the speed of the machine may change.
        for has_index in (True, False) if turn % 2 else (False, True):
            gc.collect()
            begun, at = time.process_time(), time.perf_counter()
            await ways[has_index].take(payloads)
            if turn >= 0:
                spent[has_index].append((time.process_time() - begun) / COMMANDS)
                took[has_index].append((time.perf_counter() - at) / COMMANDS)
    for way in ways.values():
        await way.close()
    await asyncio.sleep(0)
    ratios = [one / other for one, other in zip(spent[True], spent[False], strict=True)]
    cost = statistics.median(ratios) - 1
    doubt = statistics.stdev(ratios) / turns**0.5
    rates = {has_index: 1 / statistics.median(each) for has_index, each in took.items()}
    return Figure(
        f"search index, modify of one of {things:,} things",
        f"{statistics.median(spent[True]) * 1e6:.0f} µs of processor each",
        f"{statistics.median(spent[False]) * 1e6:.0f} µs (no index)",
        f"cost ≤ {MOST_COST:.0%} of the rate",
        cost / (1 + cost) <= MOST_COST,
        f"time {cost:+.1%} ± {doubt:.1%}, rate −{cost / (1 + cost):.0%}, {turns} turns; waiting for the disk included "
        f"{rates[True]:,.0f}/s, and {rates[False]:,.0f}/s without",
    )


def _room(path: Path, things: int, creating: dict[bool, float]) -> Iterator[Figure]:
    with closing(Journal.open(path)) as journal:
        sizes = dict(
            journal.read(lambda it: it.execute("SELECT name, sum(pgsize) FROM dbstat GROUP BY name").fetchall())
        )
        (rows,) = journal.read(lambda it: it.execute("SELECT count(*) FROM search_values").fetchone())
        (text,) = journal.read(
            lambda it: it.execute("SELECT avg(length(state)) FROM entities WHERE type = 'thing'").fetchone()
        )
    index = sum(size for name, size in sizes.items() if "search" in name)
    yield Figure(
        f"search index, room for {things:,} things",
        f"{index / things:,.0f} bytes each",
        f"{text:,.0f} bytes of state each",
        "–",
        True,
        f"{rows / things:.0f} rows each; {index / 1e6:,.0f} of {sum(sizes.values()) / 1e6:,.0f} MB",
    )
    yield Figure(
        f"search index, creation of a thing, {things:,} of them",
        f"{creating[True] * 1e6:.0f} µs of processor each",
        f"{creating[False] * 1e6:.0f} µs (no index)",
        "–",
        True,
        "the journal alone, a thousand to a commit",
    )


def _made(path: Path, copy: Path, things: int) -> Iterator[Figure]:
    shutil.copyfile(path, copy)
    with closing(Journal.open(copy)) as journal:
        longest = 0.0
        begun = time.perf_counter()
        more = True
        while more:
            at = time.perf_counter()
            more = journal.within(index_builder.step)
            journal.commit()
            longest = max(longest, time.perf_counter() - at)
        seconds = time.perf_counter() - begun
    yield Figure(
        f"search index made of {things:,} states",
        f"{things / seconds:,.0f} things/s",
        "–",
        "–",
        True,
        f"longest step {longest * 1000:.0f} ms; a running service takes twice as long, since others come in between",
    )
    begun = time.perf_counter()
    found = compare(copy)
    seconds = time.perf_counter() - begun
    assert (found.entities, found.differing) == (things + 1, 0), found.examples
    yield Figure(
        f"search index compared with {things:,} states",
        f"{things / seconds:,.0f} things/s",
        "–",
        "–",
        True,
        f"{seconds:.1f} s",
    )
