"""An operator as a process, which edits connections until it is killed, and logs each response.

    python -m tests.support.kill_series.operator FOLDER SEED LOG

Each command has two lines in the log: `begun` before the request, and `done` after the response that it is stored. The
connections use an unused port, so opening one returns 504, which means that it is stored. `decision` compares the log
with the journal, in the process that has killed the operator.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from connectivity.config.settings import Settings
from connectivity.errors import OperationRefused
from connectivity.service import Service
from connectivity.store.connection_repository import ConnectionRepository
from connectivity.store.store import Store
from tests.support.dice import dice

OWN = ("annex", "depot", "gate")
"""Connections that the API owns."""

FILED = "yard"
"""A connection that a file owns."""

STORED = 504


class Asked(NamedTuple):
    """A command for a connection. `topic` distinguishes documents."""

    action: str
    connection: str
    topic: str = ""


class State(NamedTuple):
    """The state of a connection: its topic and status, or None for a missing connection."""

    topic: str | None
    status: str | None


def document(topic: str, status: str = "open") -> dict[str, Any]:
    return {
        "connectionType": "mqtt",
        "connectionStatus": status,
        "uri": "tcp://127.0.0.1:1",
        "failoverEnabled": False,
        "sources": [{"addresses": [topic], "qos": 1, "authorizationContext": ["acme:x"]}],
    }


def prepare(folder: Path) -> None:
    """Create the folder of a service with one connection in a file."""
    (folder / "connections").mkdir()
    (folder / "connections" / f"{FILED}.json").write_text(json.dumps(document("in")), encoding="utf-8")


def service_in(folder: Path) -> Service:
    return Service(Settings(connections_dir=folder / "connections", data_dir=folder, spark={"mode": "off"}))


async def work(folder: Path, seed: int, log: Path) -> None:
    """Send commands until the process is killed."""
    rng = dice("operator", seed)
    service = service_in(folder)
    await service.management.load()
    await service.registry.refresh()
    with log.open("a", encoding="utf-8") as lines:

        def note(what: str, asked: Asked) -> None:
            lines.write(json.dumps([what, *asked]) + "\n")
            lines.flush()
            os.fsync(lines.fileno())

        while True:
            asked = next(chosen(rng, service))
            note("begun", asked)
            try:
                await carry_out(service, asked)
            except OperationRefused as refusal:
                if refusal.fault.status != STORED:
                    note("refused", asked)
                    continue
            note("done", asked)


def chosen(rng: random.Random, service: Service) -> Iterator[Asked]:
    """Yield a random command that is valid now."""
    connection = rng.choice((*OWN, FILED))
    if connection == FILED:
        yield Asked(rng.choice(("open", "close")), connection)
    elif connection not in service.registry.known:
        yield Asked(rng.choice(("create", "put")), connection, f"t{rng.random()}")
    else:
        yield Asked(rng.choice(("put", "open", "close", "delete")), connection, f"t{rng.random()}")


async def carry_out(service: Service, asked: Asked) -> None:
    management = service.management
    match asked.action:
        case "create":
            await management.create({**document(asked.topic), "id": asked.connection}, "ada")
        case "put":
            await management.put(asked.connection, document(asked.topic), "ada", lambda _revision: None)
        case "delete":
            await management.delete(asked.connection, "ada", lambda _revision: None)
        case "open":
            await management.open(asked.connection, "ada")
        case _:
            await management.close(asked.connection, "ada")


# --- the decision
# -------------------------------------------------------------------------------------------------------


def decision(folder: Path, log: Path) -> list[str]:
    """Return the connections whose stored state is not an expected one."""
    stored = asyncio.run(_stored(folder))
    return [
        f"{id}: found {stored[id]}, expected one of {wanted}"
        for id, wanted in expected(log).items()
        if stored[id] not in wanted
    ]


async def _stored(folder: Path) -> dict[str, State]:
    store = Store.open(folder / "journal.db")
    found = dict.fromkeys(OWN, State(None, None))
    definitions = ConnectionRepository(store)
    for revision in definitions.current():
        if revision.document is not None:
            read = json.loads(revision.document)
            found[revision.id] = State(read["sources"][0]["addresses"][0], read["connectionStatus"])
    notes = {note.id: note for note in definitions.file_notes()}
    found[FILED] = State("in", notes[FILED].override or "open" if FILED in notes else "open")
    await store.close()
    return found


def expected(log: Path) -> dict[str, list[State]]:
    """Return the possible states of each connection.

    These are the state after the last response, and the one after a command without a response.
    """
    states = {id: [State(None, None)] for id in OWN} | {FILED: [State("in", "open")]}
    unanswered: dict[str, Asked] = {}
    lines = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines() if line.endswith("]")]

    def settle(connection: str) -> None:
        """Add the states after a command without a response, because it may have been carried out."""
        if (asked := unanswered.pop(connection, None)) is not None:
            states[connection] += [_after(state, asked) for state in states[connection]]

    for what, *rest in lines:
        asked = Asked(*rest)
        if what == "begun":
            settle(asked.connection)
            unanswered[asked.connection] = asked
        else:
            unanswered.pop(asked.connection)
            if what == "done":
                states[asked.connection] = [_after(state, asked) for state in states[asked.connection]]
    for connection in states:
        settle(connection)
    return states


def _after(state: State, asked: Asked) -> State:
    match asked.action:
        case "create" | "put":
            return State(asked.topic, "open")
        case "delete":
            return State(None, None)
        case "open":
            return state._replace(status="open")
        case _:
            return state._replace(status="closed")


if __name__ == "__main__":
    asyncio.run(work(Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])))
