"""A search client of a connection without brokers, which records the received messages.

searcher = Searcher(site)
key = await searcher.subscribe('eq(attributes/room,"hall")', "size(3)")
await searcher.request(key, 5)
searcher.pages(key)
"""

from __future__ import annotations

from typing import Any

from tests.support.in_process.service import ConnectionHarness, command, policy, searching, until

_ENDS = "complete", "failed"


class Searcher:
    """A search client that sends through one source."""

    def __init__(self, harness: ConnectionHarness, source: int = 0) -> None:
        self.harness = harness
        self._source = source
        self._number = 0

    async def subscribe(
        self, filter: str | None = None, options: str | None = None, *, fields: str | None = None, **more: Any
    ) -> str:
        """Subscribe and return the subscription ID. Keywords are further members of the value."""
        self._number += 1
        value = {"filter": filter, "options": options, **more}
        correlation = f"sub-{self._source}-{self._number}"
        payload = searching("subscribe", value, correlation_id=correlation)
        if fields is not None:
            payload = payload[:-1] + f', "fields": "{fields}"}}'.encode()
        self.harness.deliver(payload, source=self._source)
        await until(lambda: any(each["headers"]["correlation-id"] == correlation for each in self.harness.answers()))
        (created,) = [each for each in self.harness.answers() if each["headers"]["correlation-id"] == correlation]
        assert created["topic"] == "_/_/things/twin/search/created"
        key: str = created["value"]["subscriptionId"]
        return key

    def ask(self, key: str, demand: Any = 1, *, correlation: str = "req") -> None:
        """Send a request without waiting."""
        value = {"subscriptionId": key, "demand": demand}
        self.harness.deliver(searching("request", value, correlation_id=correlation), source=self._source)

    async def request(self, key: str, demand: Any = 1) -> list[Any]:
        """Request pages, wait for them or for the end, and return the pages so far."""
        before = len(self.pages(key))
        self.ask(key, demand)
        await until(lambda: len(self.pages(key)) == before + demand or self.end(key) is not None)
        return self.pages(key)

    async def all(self, filter: str | None = None, options: str | None = "size(200)", **more: Any) -> list[str]:
        """Return the IDs of all hits, in order."""
        key = await self.subscribe(filter, options, **more)
        self.ask(key, 1000)
        await until(lambda: self.end(key) is not None)
        assert self.end(key) == "complete", self.failure(key)
        return [thing["thingId"] for page in self.pages(key) for thing in page]

    def cancel(self, key: str) -> None:
        self.harness.deliver(searching("cancel", {"subscriptionId": key}), source=self._source)

    # received messages

    def events(self, key: str) -> list[dict[str, Any]]:
        """Return the messages of a subscription, oldest first."""
        about = [each for each in self.harness.answers() if "/search/" in each["topic"]]
        return [each for each in about if each["value"]["subscriptionId"] == key]

    def messages(self, key: str) -> list[str]:
        """Return the actions of the messages of a subscription."""
        return [each["topic"].rpartition("/")[2] for each in self.events(key)]

    def pages(self, key: str) -> list[list[dict[str, Any]]]:
        return [each["value"]["items"] for each in self.events(key) if "items" in each["value"]]

    def end(self, key: str) -> str | None:
        """Return the action that ended a subscription; None while it is open."""
        return next((action for action in self.messages(key) if action in _ENDS), None)

    def failure(self, key: str) -> dict[str, Any]:
        """Return the error that ended a subscription."""
        failures: list[dict[str, Any]] = [
            each["value"]["error"] for each in self.events(key) if "error" in each["value"]
        ]
        return failures[-1]


async def has_thing(
    harness: ConnectionHarness, name: str, document: dict[str, Any] | None = None, **policies: Any
) -> None:
    """Create a thing; `policy=` replaces the owner's policy."""
    entries = policies.get("policy") or policy("acme:owner")
    value = {**(document or {}), "_policy": entries}
    before = len(harness.link.published)
    harness.deliver(command("create", value=value, name=name))
    await until(lambda: len(harness.link.published) > before)
    assert harness.answers()[before]["status"] == 201, harness.answers()[before]
