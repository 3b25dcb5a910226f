"""What devices report and how their past is replayed: the same words over every broker.

Each function is one scene. Raises NotAsPromised where the conversation goes another way than the documentation says.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from typing import Any

from examples.party import Party

FULL = {"grant": ["READ", "WRITE"], "revoke": []}
READ = {"grant": ["READ"], "revoke": []}
READERS = ("demo:clients", "demo:gateways", "demo:back-end", "demo:analytics")
NAMESPACE = "acme.plant"
AT_FIRST = 20.0
"""The temperature that a twin is created with."""
HOT = 30
COLD = 20
ALARM = 90
"""What the example for AMQP takes for overheating."""
EVERYTHING = 1_000
A_PAGE = 3
"""Things on a page of a search: few, so that there is more than one page."""
SILENCE = 0.7


class NotAsPromised(RuntimeError):
    """The conversation went another way than the documentation says."""


def topic(device: str, rest: str) -> str:
    return f"{NAMESPACE}/{device}/things/twin/{rest}"


def twin(device: str) -> str:
    """The id of a device's twin."""
    return f"{NAMESPACE}:{device}"


def policy(*, is_open: bool) -> dict[str, Any]:
    """Devices may do everything with their twins; the others may read, unless the twin is closed to them."""
    everything = {"thing:/": FULL, "policy:/": FULL}
    entries: dict[str, Any] = {"devices": {"subjects": {"demo:devices": {"type": "MQTT"}}, "resources": everything}}
    if is_open:
        subjects = {reader: {"type": "reader"} for reader in READERS}
        entries["readers"] = {"subjects": subjects, "resources": {"thing:/": READ}}
    return {"entries": entries}


def temperature_of(turn: int, number: int) -> float:
    """What the device with this number reports in a round."""
    return round(25 + 10 * math.sin((turn + number) / 3), 1)


def report(devices: Sequence[Party], rounds: int, pause: float) -> None:
    """Each device creates its twin and reports a temperature every `pause` seconds. The last one keeps others out."""
    for device in devices:
        twin = {"_policy": policy(is_open=device is not devices[-1]), "attributes": {"temperature": AT_FIRST}}
        device.send(topic(device.name, "commands/create"), value=twin)
    for device in devices:
        if (answer := device.receive()).get("status") != 201:
            raise NotAsPromised(f"{device.name} could not create its twin: {answer}")
    for turn in range(rounds):
        for number, device in enumerate(devices):
            device.send(topic(device.name, "commands/modify"), "/attributes/temperature", temperature_of(turn, number))
        time.sleep(pause)
    for device in devices:
        for _ in range(rounds):
            if (answer := device.receive()).get("status") != 204:
                raise NotAsPromised(f"{device.name} could not report: {answer}")


def create(device: Party, *, is_open: bool) -> None:
    """A device makes its twin."""
    device.send(topic(device.name, "commands/create"), value={"_policy": policy(is_open=is_open), "attributes": {}})
    if (answer := device.receive()).get("status") != 201:
        raise NotAsPromised(f"{device.name} could not create its twin: {answer}")


def overheat(device: Party) -> float:
    """A device reports that it is hot, and then that it is too hot; when it did, on the monotonic clock."""
    reported = 0.0
    for temperature in (ALARM - 10, ALARM + 5):
        reported = time.monotonic()
        device.send(topic(device.name, "commands/modify"), "/attributes/temperature", temperature)
    return reported


def expect_alarm(listener: Party, device: Party) -> float:
    """One alarm comes, of this device; when it did."""
    alarm = listener.receive()
    heard = time.monotonic()
    expected = (topic(device.name, "events/modified"), ALARM + 5)
    if (alarm["topic"], alarm.get("value")) != expected:
        raise NotAsPromised(f"an alarm of {device.name} was expected, {alarm} came")
    if not listener.hears_nothing(SILENCE):
        raise NotAsPromised("more alarms came than devices that overheated and may be heard of")
    return heard


def ask_about_neighbour(device: Party, neighbour: Party) -> None:
    """A device asks about another one, which alone is told that somebody did."""
    device.send(topic(neighbour.name, "commands/retrieve"))
    refused = neighbour.receive()
    while not refused["topic"].endswith("/errors"):
        refused = neighbour.receive()
    if refused["status"] != 400 or "enforcement" not in refused["value"]["error"]:
        raise NotAsPromised(f"a refusal of the command was expected, {refused} came")


def cool_down(devices: Sequence[Party]) -> None:
    """Each device reports that it is cold."""
    for device in devices:
        device.send(topic(device.name, "commands/modify"), "/attributes/temperature", COLD)
    for device in devices:
        if (answer := device.receive()).get("status") != 204:
            raise NotAsPromised(f"{device.name} could not report: {answer}")


def hot_after(rounds: int, devices: Sequence[str]) -> list[str]:
    """Those of the devices whose last report of so many was hot, and that others may read, as a search orders them."""
    last = {device: temperature_of(rounds - 1, number) for number, device in enumerate(devices)}
    return sorted(twin(device) for device in devices[:-1] if last[device] > HOT)


def search(party: Party, filter: str, **past: str) -> list[str]:
    """The ids of the things that match, page by page; with `at_historical_timestamp` those that matched at an instant."""
    value = {"filter": filter, "options": f"size({A_PAGE})", "namespaces": [NAMESPACE]}
    party.send("_/_/things/twin/search/subscribe", value=value, fields="thingId,attributes/temperature", **past)
    created = party.receive()
    if not created["topic"].endswith("/created"):
        raise NotAsPromised(f"a created event was expected, {created} came")
    wanted = {"subscriptionId": created["value"]["subscriptionId"], "demand": EVERYTHING}
    party.send("_/_/things/twin/search/request", value=wanted)
    found: list[str] = []
    while not (event := party.receive())["topic"].endswith("/complete"):
        if not event["topic"].endswith("/next"):
            raise NotAsPromised(f"next or complete was expected, {event} came")
        found += [thing["thingId"] for thing in event["value"]["items"]]
    return found


class Replay:
    """A subscription to a device's past. `revisions` are those that came."""

    def __init__(self, party: Party, device: str, bounds: dict[str, Any]) -> None:
        self.revisions: list[int] = []
        self._party, self._device = party, device
        party.send(topic(device, "streaming/subscribeForPersistedEvents"), value=bounds)
        created = party.receive()
        if not created["topic"].endswith("/created"):
            raise NotAsPromised(f"a created event was expected, {created} came")
        self._id = str(created["value"]["subscriptionId"])

    def next(self, demand: int) -> None:
        """Request some and take exactly as many."""
        self._request(demand)
        for _ in range(demand):
            event = self._party.receive()
            if not event["topic"].endswith("/next"):
                raise NotAsPromised(f"a next event was expected, {event} came")
            self.revisions.append(int(event["value"]["item"]["revision"]))

    def rest(self) -> None:
        """Request more than there is, and take what comes until it is complete."""
        self._request(EVERYTHING)
        self.revisions += self._until_complete()

    def pause(self) -> None:
        """Request nothing, and get nothing."""
        if not self._party.hears_nothing(SILENCE):
            raise NotAsPromised("more events came than were requested")

    def stop(self) -> None:
        """Cancel, after which nothing comes."""
        self._party.send(topic(self._device, "streaming/cancel"), value={"subscriptionId": self._id})
        self.pause()

    def expect_refusal(self) -> None:
        """Request, and be told that there is no such twin: who may not read it is told no more."""
        self._request(1)
        failed = self._party.receive()
        if failed["value"].get("error", {}).get("status") != 404:
            raise NotAsPromised(f"a failed event with 404 was expected, {failed} came")

    def expect(self, revisions: Sequence[int]) -> None:
        if self.revisions != list(revisions):
            raise NotAsPromised(f"revisions {list(revisions)} were expected, {self.revisions} came")

    def _request(self, demand: int) -> None:
        value = {"subscriptionId": self._id, "demand": demand}
        self._party.send(topic(self._device, "streaming/request"), value=value)

    def _until_complete(self) -> Iterator[int]:
        while not (event := self._party.receive())["topic"].endswith("/complete"):
            if not event["topic"].endswith("/next"):
                raise NotAsPromised(f"next or complete was expected, {event} came")
            yield int(event["value"]["item"]["revision"])
