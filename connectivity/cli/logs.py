"""`connectivity connections logs`: what has happened to a connection, once or as it happens.

The API keeps the last entries of each kind and numbers none of them, so an entry is known by all that it says. Following
asks again and again and prints what has not been there, in the order of the answer. A service that goes away is waited for:
what it kept in memory is gone then, and what it says afterwards is new.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from typing import Any

from connectivity.cli.asking import NOT_FOUND, NotReached, Refused, Service
from connectivity.cli.tables import objects

GRACE_SECONDS = 60.0
"""How long a service that has come back may take until it knows the connection again."""

_REMEMBERED = 100_000
_FIRST_SERVER_FAULT = 500


class Level(str, Enum):
    """How it went."""

    SUCCESS = "success"
    FAILURE = "failure"


class Seen:
    """The entries that were printed: each as often as it was in one answer at most."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    def new(self, found: object) -> list[Mapping[str, Any]]:
        """Those of an answer that are new, in its order."""
        entries = objects(found.get("connectionLogs")) if isinstance(found, dict) else []
        keys = [json.dumps(entry, sort_keys=True) for entry in entries]
        before: Counter[str] = Counter()
        fresh = []
        for key, entry in zip(keys, entries, strict=True):
            before[key] += 1
            if before[key] > self._counts.get(key, 0):
                fresh.append(entry)
        for key, count in before.items():
            self._counts[key] = max(count, self._counts.pop(key, 0))
        while len(self._counts) > _REMEMBERED:
            # The one that no answer has held for the longest time.
            del self._counts[next(iter(self._counts))]
        return fresh


def follow(
    service: Service,
    connection: str,
    seconds: float,
    told: Callable[[str], None],
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Mapping[str, Any]]:
    """New entries, without end. `told` hears when the service goes away and comes back.

    Raises AskingFailed for what waiting does not mend: no right to ask, no such connection.
    """
    seen, away = Seen(), False
    missed: float | None = None
    while True:
        try:
            found = service.get("connections", connection, "logs")
        except NotReached as error:
            missed = clock()
            if not away:
                told(f"{error}; waiting")
                away = True
        except Refused as error:
            is_back = missed is not None and clock() - missed <= GRACE_SECONDS
            if error.answered < _FIRST_SERVER_FAULT and not (error.answered == NOT_FOUND and is_back):
                raise
        else:
            if away:
                told(f"{service.place.shown}: there again")
                away = False
            yield from seen.new(found)
        sleep(seconds)
