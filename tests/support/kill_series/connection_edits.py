"""Edits of the connections of a load: in their files, and closed and opened in files and by the API.

    edits = ConnectionEdits(service, documents, dice("edits"))
    edits.step()

Each step waits until the connection is open again, while deliveries, commits and retrieves of the past are in progress.
"""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from tests.support.connection_documents import CONNECTIONS
from tests.support.service_process import ServiceProcess
from tests.support.wait import wait_until_sync

DONE_WITHIN = 60.0


class ConnectionEdits:
    """Takes random steps. `steps` is the number of steps by kind."""

    def __init__(self, service: ServiceProcess, documents: Sequence[Mapping[str, Any]], chances: random.Random) -> None:
        self._service, self._dice = service, chances
        self._documents = {str(document["id"]): dict(document) for document in documents}
        self.steps: Counter[str] = Counter()

    def step(self) -> None:
        """Edit a connection, or close and open it."""
        connection_id = self._dice.choice(sorted(self._documents))
        step = self._dice.choice([self._edit, self._close_and_open_file, self._close_and_open])
        step(connection_id)
        self.steps[step.__name__.lstrip("_")] += 1

    def _edit(self, connection_id: str) -> None:
        """Change something that needs a new link.

        The subjects stay the same, because idempotency keys are per sender.
        """
        links, document = self._links(connection_id), self._documents[connection_id]
        for source in document["sources"]:
            types = source["replyTarget"].get("expectedResponseTypes", ["response", "error"])
            source["replyTarget"]["expectedResponseTypes"] = types[:2] if "nack" in types else [*types, "nack"]
        self._save(document)
        wait_until_sync(lambda: self._links(connection_id) > links, DONE_WITHIN)
        self._wait(connection_id, "open")

    def _close_and_open_file(self, connection_id: str) -> None:
        document = self._documents[connection_id]
        self._save({**document, "connectionStatus": "closed"})
        self._wait(connection_id, "closed")
        self._save(document)
        self._wait(connection_id, "open")

    def _close_and_open(self, connection_id: str) -> None:
        for command, status in (("closeConnection", "closed"), ("openConnection", "open")):
            asked, answer = self._service.ask(
                "POST",
                f"{CONNECTIONS}/{connection_id}/command",
                f"connectivity.commands:{command}",
                content_type="text/plain",
            )
            assert asked == 200, answer
            self._wait(connection_id, status)

    def _save(self, document: Mapping[str, Any]) -> None:
        """Replace the file atomically, as editors and git do."""
        file = self._service.folder / "connections" / f"{document['id']}.json"
        fresh = file.with_suffix(".new")
        fresh.write_text(json.dumps(document), encoding="utf-8")
        os.replace(fresh, file)

    def _links(self, connection_id: str) -> int:
        """Return how many links this connection has had."""
        records = self._service.records()
        return sum(it["event"] == "connected" and it["connection"] == connection_id for it in records)

    def _wait(self, connection_id: str, status: str) -> None:
        def is_so() -> bool:
            answered, shown = self._service.ask("GET", f"{CONNECTIONS}/{connection_id}/status")
            return answered == 200 and json.loads(shown)["liveStatus"] == status

        wait_until_sync(is_so, DONE_WITHIN)
