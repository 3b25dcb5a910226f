"""The replays of a load: each uses a subscription up to its terminal signal, then the next begins.

A replay requests a few events at a time. After a silence it requests one more, because a killed service has lost its
subscriptions and returns an error. It logs all events as they arrive, including duplicates; the checker judges them.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from hashlib import blake2b
from typing import Any

DEMAND = 40
LENGTH = 400
"""The number of revisions before the newest at which a replay begins."""

SILENCE = 5.0
"""Seconds of silence after which a replay sends a request again."""

Send = Callable[[str, dict[str, Any]], None]
"""Sends a streaming command of this replay: the last part of its topic, and its value."""

Note = Callable[[dict[str, Any]], None]


class Replaying:
    """A replay in progress."""

    def __init__(self, number: int, thing: str, newest: int, send: Send, note: Note) -> None:
        """`newest` is the highest revision of the thing in a response."""
        self.number, self.thing = number, thing
        self.is_over = False
        self._start = max(1, newest - LENGTH)
        self._send, self._note = send, note
        self._id: str | None = None
        self._newest = self._start - 1
        self._left = 0
        self._last_message = time.monotonic()
        note({"replay": number, "thing": thing, "from": self._start, "known": newest})
        self._subscribe()

    def __repr__(self) -> str:
        return f"<Replaying {self.number} of {self.thing}, at {self._newest}, {self._left} asked for>"

    def take(self, document: dict[str, Any]) -> None:
        """Handle a message for this replay."""
        kind, value = document["topic"].rpartition("/")[2], document["value"]
        if kind == "errors":
            self._refused(value["error"])
        elif kind == "created":
            # A subscribe delivered twice creates two subscriptions; use the first one, and none after an error.
            if self._id is None and not self.is_over:
                self._id = value["subscriptionId"]
                self._request(DEMAND)
        elif value.get("subscriptionId") != self._id:
            return
        elif kind == "next":
            self._item(document)
        else:
            ended = "complete" if kind == "complete" else value["error"]["error"]
            self._note({"replay": self.number, "ended": ended})
            self.is_over = True
        self._last_message = time.monotonic()

    def _refused(self, error: str) -> None:
        """Handle an internal error for a subscribe or a request."""
        if self._id is None:
            self._note({"replay": self.number, "ended": error})
            self.is_over = True
        elif not self.is_over:
            self._left = max(0, self._left - DEMAND)
            self._request(DEMAND)

    def _item(self, document: dict[str, Any]) -> None:
        item = document["value"]["item"]
        digest = blake2b(json.dumps(document).encode(), digest_size=8).hexdigest()
        revision = item["revision"]
        self._note({"replay": self.number, "item": revision, "n": item.get("value"), "digest": digest})
        if revision <= self._newest:
            return
        self._newest = revision
        self._left -= 1
        if self._left <= DEMAND // 2 and not self.is_over:
            self._request(DEMAND)

    def look(self) -> None:
        """Send the subscribe or a request again after a long silence."""
        if self.is_over or time.monotonic() - self._last_message < SILENCE:
            return
        self._last_message = time.monotonic()
        if self._id is None:
            self._subscribe()
        else:
            self._request(1)

    def _subscribe(self) -> None:
        self._send("subscribeForPersistedEvents", {"fromHistoricalRevision": self._start})

    def _request(self, demand: int) -> None:
        self._left += demand
        self._note({"replay": self.number, "demanded": demand})
        self._send("request", {"subscriptionId": self._id, "demand": demand})
