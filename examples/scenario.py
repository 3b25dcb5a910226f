"""The steps of the demo: devices report, and clients replay and search.

Each function is one step, with the same messages over every broker. It raises UnexpectedResult if the service does not
respond as documented.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from typing import Any

from examples.broker_client import BrokerClient

FULL = {"grant": ["READ", "WRITE"], "revoke": []}
READ = {"grant": ["READ"], "revoke": []}
READERS = ("demo:clients", "demo:gateways", "demo:back-end", "demo:analytics")
NAMESPACE = "acme.plant"
INITIAL_TEMPERATURE = 20.0
HOT = 30
COLD = 20
ALARM = 90
"""The limit in the filter of the example connection `back-end`."""
ALL = 1_000
"""A demand above the number of events or pages."""
PAGE_SIZE = 3
"""Things in a page of a search; small, so that a search has several pages."""
SILENCE = 0.7
"""Seconds without a message that prove that none comes."""


class UnexpectedResult(RuntimeError):
    """The service did not respond as documented."""


def topic(device: str, rest: str) -> str:
    return f"{NAMESPACE}/{device}/things/twin/{rest}"


def thing_id(device: str) -> str:
    return f"{NAMESPACE}:{device}"


def policy(*, is_open: bool) -> dict[str, Any]:
    """A policy under which devices can change the twin and, if it `is_open`, other clients can read it."""
    everything = {"thing:/": FULL, "policy:/": FULL}
    entries: dict[str, Any] = {"devices": {"subjects": {"demo:devices": {"type": "MQTT"}}, "resources": everything}}
    if is_open:
        subjects = {reader: {"type": "reader"} for reader in READERS}
        entries["readers"] = {"subjects": subjects, "resources": {"thing:/": READ}}
    return {"entries": entries}


def temperature(turn: int, number: int) -> float:
    """The temperature that the device with this number reports in a round."""
    return round(25 + 10 * math.sin((turn + number) / 3), 1)


def report(devices: Sequence[BrokerClient], rounds: int, pause: float) -> None:
    """Each device creates its twin, and reports a temperature every `pause` seconds.

    Only devices can read the twin of the last device.
    """
    for device in devices:
        twin = {
            "_policy": policy(is_open=device is not devices[-1]),
            "attributes": {"temperature": INITIAL_TEMPERATURE},
        }
        device.send(topic(device.name, "commands/create"), value=twin)
    for device in devices:
        _expect_status(device, 201)
    for turn in range(rounds):
        for number, device in enumerate(devices):
            device.send(topic(device.name, "commands/modify"), "/attributes/temperature", temperature(turn, number))
        time.sleep(pause)
    for device in devices:
        for _ in range(rounds):
            _expect_status(device, 204)


def create(device: BrokerClient, *, is_open: bool) -> None:
    """A device creates its twin."""
    device.send(topic(device.name, "commands/create"), value={"_policy": policy(is_open=is_open), "attributes": {}})
    _expect_status(device, 201)


def overheat(device: BrokerClient) -> float:
    """A device reports a temperature below the alarm limit, then one above it.

    Returns the time of the second report, on the monotonic clock.
    """
    reported_at = 0.0
    for value in (ALARM - 10, ALARM + 5):
        reported_at = time.monotonic()
        device.send(topic(device.name, "commands/modify"), "/attributes/temperature", value)
    return reported_at


def expect_alarm(client: BrokerClient, device: BrokerClient) -> float:
    """The client receives exactly one alarm, of this device. Returns the time, on the monotonic clock."""
    alarm = client.receive()
    received_at = time.monotonic()
    if (alarm["topic"], alarm.get("value")) != (topic(device.name, "events/modified"), ALARM + 5):
        raise UnexpectedResult(f"found {alarm}, expected an alarm of {device.name}")
    if not client.receives_nothing(SILENCE):
        raise UnexpectedResult("found another alarm, expected one")
    return received_at


def expect_refusal(device: BrokerClient, other: BrokerClient) -> None:
    """A device sends a command for the twin of another device, which the sender check refuses.

    The error goes to the other device, because the reply address depends on the entity in the command.
    """
    device.send(topic(other.name, "commands/retrieve"))
    error = other.receive()
    while not error["topic"].endswith("/errors"):
        error = other.receive()
    if error["status"] != 400 or "enforcement" not in error["value"]["error"]:
        raise UnexpectedResult(f"found {error}, expected that the command is refused")


def cool_down(devices: Sequence[BrokerClient]) -> None:
    """Each device reports a cold temperature."""
    for device in devices:
        device.send(topic(device.name, "commands/modify"), "/attributes/temperature", COLD)
    for device in devices:
        _expect_status(device, 204)


def _expect_status(device: BrokerClient, status: int) -> None:
    response = device.receive()
    if response.get("status") != status:
        raise UnexpectedResult(f"{device.name}: found {response}, expected the status {status}")


def hot_things(rounds: int, devices: Sequence[str]) -> list[str]:
    """The ids of the open twins that are hot after this number of rounds, in the order of a search."""
    last = {device: temperature(rounds - 1, number) for number, device in enumerate(devices)}
    return sorted(thing_id(device) for device in devices[:-1] if last[device] > HOT)


def search(client: BrokerClient, filter: str, **headers: str) -> list[str]:
    """The ids of the things that match, read page by page.

    With the header `at_historical_timestamp`: the ids of those that matched at this time.
    """
    value = {"filter": filter, "options": f"size({PAGE_SIZE})", "namespaces": [NAMESPACE]}
    client.send("_/_/things/twin/search/subscribe", value=value, fields="thingId,attributes/temperature", **headers)
    subscription_id = _expect_created(client)
    client.send("_/_/things/twin/search/request", value={"subscriptionId": subscription_id, "demand": ALL})
    found: list[str] = []
    for event in _until_complete(client):
        found += [thing["thingId"] for thing in event["value"]["items"]]
    return found


class Replay:
    """A subscription to the history of a device. `revisions` are those that the client has received."""

    def __init__(self, client: BrokerClient, device: str, options: dict[str, Any]) -> None:
        self.revisions: list[int] = []
        self._client, self._device = client, device
        client.send(topic(device, "streaming/subscribeForPersistedEvents"), value=options)
        self._id = _expect_created(client)

    def next(self, demand: int) -> None:
        """Request and receive this number of events."""
        self._request(demand)
        for _ in range(demand):
            self.revisions.append(_revision(_expect_next(self._client.receive())))

    def rest(self) -> None:
        """Request and receive all remaining events."""
        self._request(ALL)
        self.revisions += map(_revision, _until_complete(self._client))

    def pause(self) -> None:
        """Check that no event arrives without a request."""
        if not self._client.receives_nothing(SILENCE):
            raise UnexpectedResult("found more events than the client requested")

    def stop(self) -> None:
        """Cancel the subscription, and check that no event arrives."""
        self._client.send(topic(self._device, "streaming/cancel"), value={"subscriptionId": self._id})
        self.pause()

    def expect_refusal(self) -> None:
        """Request an event of a private twin: the response is 404, as for an unknown twin."""
        self._request(1)
        failed = self._client.receive()
        if failed["value"].get("error", {}).get("status") != 404:
            raise UnexpectedResult(f"found {failed}, expected a failed event with 404")

    def expect(self, revisions: Sequence[int]) -> None:
        if self.revisions != list(revisions):
            raise UnexpectedResult(f"found revisions {self.revisions}, expected {list(revisions)}")

    def _request(self, demand: int) -> None:
        value = {"subscriptionId": self._id, "demand": demand}
        self._client.send(topic(self._device, "streaming/request"), value=value)


def _expect_created(client: BrokerClient) -> str:
    """The id of the subscription that the service has created."""
    created = client.receive()
    if not created["topic"].endswith("/created"):
        raise UnexpectedResult(f"found {created}, expected a created event")
    return str(created["value"]["subscriptionId"])


def _expect_next(event: dict[str, Any]) -> dict[str, Any]:
    if not event["topic"].endswith("/next"):
        raise UnexpectedResult(f"found {event}, expected a next event")
    return event


def _until_complete(client: BrokerClient) -> Iterator[dict[str, Any]]:
    while not (event := client.receive())["topic"].endswith("/complete"):
        yield _expect_next(event)


def _revision(event: dict[str, Any]) -> int:
    return int(event["value"]["item"]["revision"])
