"""An operator who adds, edits, closes, opens and deletes connections at random, in files and by API.

    churn = ConnectionChurn(service, series_brokers, dice("churn"), "churn-1")
    churn.step()

Each step is one action, and waits until it is complete. The connections use the brokers of a load, but are not those of
the load. All requests are valid, so a refusal is an AssertionError.
"""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.support.kill_series.series_broker import KillSeriesBroker
from tests.support.service_process import ServiceProcess
from tests.support.wait import wait_until_sync

CONNECTIONS = "/api/2/connections"
FEWEST, MOST = 2, 8
"""The minimum and maximum number of connections in the API, and in files."""

DONE_WITHIN = 60.0


class ConnectionChurn:
    """Takes random steps. `steps` is the number of steps by kind."""

    def __init__(
        self, service: ServiceProcess, series_brokers: Sequence[KillSeriesBroker], dice: random.Random, series: str
    ) -> None:
        self._service, self._series_brokers, self._dice, self._series = service, series_brokers, dice, series
        self._made = 0
        self._in_api: dict[str, dict[str, Any]] = {}
        self._in_files: dict[str, dict[str, Any]] = {}
        self.steps: Counter[str] = Counter()
        for series_broker in series_brokers:
            series_broker.prepare(series, "churn")

    def __repr__(self) -> str:
        return f"<Churn, {dict(self.steps)}>"

    def step(self) -> None:
        """Do a random action and wait until it is complete."""
        step = self._dice.choice(self._possible())
        step()
        self.steps[step.__name__.lstrip("_")] += 1

    def _possible(self) -> list[Callable[[], None]]:
        steps: list[Callable[[], None]] = []
        for owned, add, remove, others in (
            (self._in_api, self._create, self._delete, (self._put, self._close, self._open)),
            (self._in_files, self._write, self._remove, (self._rewrite, self._break)),
        ):
            steps += [add] if len(owned) < MOST else []
            steps += [remove, *others] if len(owned) > FEWEST else []
        return steps

    def _document(self, status: str = "open") -> dict[str, Any]:
        """Return a new connection, which has no clients."""
        self._made += 1
        series_broker = self._dice.choice(list(self._series_brokers))
        document = series_broker.connection(self._series, "churn")
        return {**document, "id": f"churn-{self._made}", "connectionStatus": status}

    def _change(self, document: dict[str, Any]) -> dict[str, Any]:
        """Return the same connection with a change that needs a new link."""
        (source,) = document["sources"]
        return {**document, "sources": [{**source, "authorizationContext": [f"acme:churn-{self._dice.random()}"]}]}

    def _ask(self, method: str, path: str, body: Any = None, *, expect: int) -> None:
        kind = "text/plain" if isinstance(body, str) else "application/json"
        status, answer = self._service.ask(method, path, body, content_type=kind)
        assert status == expect, f"{method} {path}: {status} {answer!r}"

    def _chosen(self, owned: dict[str, Any]) -> str:
        return self._dice.choice(sorted(owned))

    def _wait(self, connection_id: str, status: str | None) -> None:
        """Wait until the connection has this status, or does not exist for None."""
        wait_until_sync(lambda: self._status(connection_id) == status, DONE_WITHIN)

    def _status(self, connection_id: str) -> str | None:
        status, answer = self._service.ask("GET", f"{CONNECTIONS}/{connection_id}/status")
        return str(json.loads(answer)["liveStatus"]) if status == 200 else None

    # by the API

    def _create(self) -> None:
        document = self._document(self._dice.choice(["open", "open", "closed"]))
        self._ask("PUT", f"{CONNECTIONS}/{document['id']}", document, expect=201)
        self._in_api[document["id"]] = document
        self._wait(document["id"], document["connectionStatus"])

    def _put(self) -> None:
        name = self._chosen(self._in_api)
        self._in_api[name] = self._change(self._in_api[name])
        self._ask("PUT", f"{CONNECTIONS}/{name}", self._in_api[name], expect=204)
        self._wait(name, self._in_api[name]["connectionStatus"])

    def _command(self, command: str, status: str) -> None:
        name = self._chosen(self._in_api)
        self._in_api[name]["connectionStatus"] = status
        self._ask("POST", f"{CONNECTIONS}/{name}/command", f"connectivity.commands:{command}", expect=200)
        self._wait(name, status)

    def _close(self) -> None:
        self._command("closeConnection", "closed")

    def _open(self) -> None:
        self._command("openConnection", "open")

    def _delete(self) -> None:
        name = self._chosen(self._in_api)
        del self._in_api[name]
        self._ask("DELETE", f"{CONNECTIONS}/{name}", expect=204)
        self._wait(name, None)

    # in files

    def _file(self, name: str) -> Path:
        return self._service.folder / "connections" / f"{name}.json"

    def _save(self, name: str, text: str) -> None:
        """Replace the file atomically, as editors and git do."""
        fresh = self._file(name).with_suffix(".new")
        fresh.write_text(text, encoding="utf-8")
        os.replace(fresh, self._file(name))

    def _write(self) -> None:
        document = self._document()
        self._in_files[document["id"]] = document
        self._save(document["id"], json.dumps(document))
        self._wait(document["id"], "open")

    def _rewrite(self) -> None:
        name = self._chosen(self._in_files)
        status = self._dice.choice(["open", "closed"])
        self._in_files[name] = {**self._change(self._in_files[name]), "connectionStatus": status}
        links = self._links(name)
        self._save(name, json.dumps(self._in_files[name]))
        if status == "open":
            # The old link is open until the service has read the file.
            wait_until_sync(lambda: self._links(name) > links, DONE_WITHIN)
        self._wait(name, status)

    def _links(self, name: str) -> int:
        """Return how many links this connection has had."""
        return sum(it["event"] == "connected" and it["connection"] == name for it in self._service.records())

    def _break(self) -> None:
        """Write an invalid document, and check that it does not change the running connection."""
        name = self._chosen(self._in_files)
        before = len(self._problems(name))
        self._save(name, json.dumps(self._in_files[name])[: self._dice.randrange(1, 80)])
        wait_until_sync(lambda: len(self._problems(name)) > before, DONE_WITHIN)
        assert (found := self._status(name)) == self._in_files[name]["connectionStatus"], (name, found)
        self._save(name, json.dumps(self._in_files[name]))

    def _problems(self, name: str) -> list[dict[str, Any]]:
        problems = [it for it in self._service.records() if it["event"] == "connection file has a problem"]
        return [it for it in problems if it["file"] == str(self._file(name))]

    def _remove(self) -> None:
        name = self._chosen(self._in_files)
        del self._in_files[name]
        self._file(name).unlink()
        self._wait(name, None)
