"""The main job, shown: devices report over a real broker, then a client replays one device's past at its own pace.

Starts a broker and the service with the example connections, lets ten simulated devices report for a few seconds, and shows
every message of the first device and of the client's conversation that follows. Ends by itself, with 0 if everything was as
it should be.
"""

from __future__ import annotations

import json
import math
import os
import secrets
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from examples.brokers import Broker, NoBroker, connections_at, mqtt_broker
from examples.party import NoAnswer, Party

RUN = Path(".run/demo")
DEVICES = 10
ROUNDS = 20
PAUSE = 0.2
READY_WITHIN = 30.0
ENDED_WITHIN = 15.0
SERVE = (sys.executable, "-m", "connectivity", "serve", "--settings", "examples/settings.yaml")
FULL = {"grant": ["READ", "WRITE"], "revoke": []}
READ = {"grant": ["READ"], "revoke": []}

console = Console(highlight=False)


class NotAsPromised(RuntimeError):
    """The conversation went another way than the documentation says."""


@dataclass(slots=True)
class Counts:
    """What the summary tells."""

    reported: int = 0
    replayed: int = 0
    filtered: int = 0


def main() -> int:
    shutil.rmtree(RUN, ignore_errors=True)
    begun = time.monotonic()
    try:
        with ExitStack() as stack:
            broker = stack.enter_context(mqtt_broker(RUN))
            console.rule(f"broker: {broker.how} at {broker.host}:{broker.port}")
            stack.enter_context(service(broker))
            counts = converse(broker)
    except NoBroker as error:
        console.print(f"[red]No broker could be started. {escape(str(error))}[/red]")
        return 1
    except (NoAnswer, NotAsPromised) as error:
        console.print(f"[red]The demo failed: {escape(str(error))}[/red]\nThe service's log: {RUN / 'service.log'}")
        return 1
    summary(counts, time.monotonic() - begun)
    return 0


@contextmanager
def service(broker: Broker) -> Iterator[None]:
    """The service with the example connections, ready. It drains and stops at the end; NotAsPromised where it does not."""
    environment = {
        **os.environ,
        "CONNECTIVITY_CONNECTIONS_DIR": str(connections_at(broker, RUN / "connections")),
        "CONNECTIVITY_DATA_DIR": str(RUN / "data"),
        "CONNECTIVITY_API__PORT": "0",
        "CONNECTIVITY_LOG__FORMAT": "json",
    }
    log = RUN / "service.log"
    with log.open("wb") as output:
        running = subprocess.Popen(SERVE, env=environment, stdout=output, stderr=output)
    try:
        wait_ready(running, log)
        console.print("service: ready\n")
        yield
    except BaseException:
        end(running)
        raise
    if (code := end(running)) != 0:
        raise NotAsPromised(f"the service ended with exit code {code}, expected 0")


def end(running: subprocess.Popen[bytes], within: float = ENDED_WITHIN) -> int:
    """Ask the service to end, make it end if it takes longer than `within` seconds, and return its exit code."""
    running.terminate()
    try:
        return running.wait(within)
    except subprocess.TimeoutExpired:
        running.kill()
        return running.wait()


def wait_ready(running: subprocess.Popen[bytes], log: Path) -> None:
    """Read the API's port from the log, then ask it until it says ready. Raises NoAnswer."""
    deadline = time.monotonic() + READY_WITHIN
    while time.monotonic() < deadline and running.poll() is None:
        port = api_port(log)
        if port is not None and answers(f"http://127.0.0.1:{port}/health/ready"):
            return
        time.sleep(0.05)
    raise NoAnswer(f"the service did not get ready:\n{log.read_text(encoding='utf-8')[-2000:]}")


def api_port(log: Path) -> int | None:
    for line in log.read_text(encoding="utf-8").splitlines():
        if line.startswith("{") and (entry := json.loads(line)).get("event") == "api listening":
            return int(entry["port"])
    return None


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as response:
            return bool(response.status == 200)
    except OSError:
        return False


def show(party: str, arrow: str, message: dict[str, Any]) -> None:
    """One line for each message: who, which way, what."""
    colour = "cyan" if arrow == "->" else "green"
    topic = "/".join(message["topic"].split("/")[1:])
    said = message.get("value")
    told = "" if said is None else f" {brief(said)}"
    status = f" [bold]{message['status']}[/bold]" if "status" in message else ""
    path = message["path"] if message["path"] != "/" else ""
    console.print(f"[{colour}]{party:>14} {arrow}[/{colour}] {topic}{path}{status}[dim]{told}[/dim]", soft_wrap=True)


def brief(value: Any) -> str:
    """A value in few words: of an event only what tells it from others."""
    if isinstance(value, dict) and "item" in value:
        item = value["item"]
        return f"revision {item['revision']} {item['path']} = {str(item.get('value'))[:60]}"
    text = str(value)
    return text if len(text) <= 100 else f"{text[:97]}..."


def quiet(_party: str, _arrow: str, _message: dict[str, Any]) -> None:
    """The reports of ten devices are too many to read: only the first one's are shown, the summary counts them all."""


def topic(device: str, rest: str) -> str:
    return f"acme.plant/{device}/things/twin/{rest}"


def policy(*, is_open: bool) -> dict[str, Any]:
    """Devices may do everything with their twins; clients may read, unless the twin is closed to them."""
    everything = {"thing:/": FULL, "policy:/": FULL}
    entries: dict[str, Any] = {"device": {"subjects": {"demo:devices": {"type": "mqtt"}}, "resources": everything}}
    if is_open:
        entries["client"] = {"subjects": {"demo:clients": {"type": "mqtt"}}, "resources": {"thing:/": READ}}
    return {"entries": entries}


def converse(broker: Broker) -> Counts:
    counts = Counts()
    # Names of their own for every run, so that a broker which is not ours may remember what it likes.
    run = secrets.token_hex(2)
    names = [f"boiler-{run}-{number:02}" for number in range(DEVICES)]
    with ExitStack() as stack:
        devices = [
            stack.enter_context(
                Party(
                    name,
                    broker.host,
                    broker.port,
                    speaks=f"devices/{name}/up",
                    listens=f"devices/{name}/down",
                    show=show if name == names[0] else quiet,
                )
            )
            for name in names
        ]
        console.rule(f"{DEVICES} devices create their twins and report; this is what {names[0]} says and hears")
        report(devices, counts)
        client = stack.enter_context(
            Party(
                "client",
                broker.host,
                broker.port,
                speaks=f"clients/{run}/ask",
                listens=f"clients/{run}/answers",
                show=show,
            )
        )
        replay_at_own_pace(client, names[0], counts)
        replay_filtered(client, names[0], counts)
        replay_forbidden(client, names[-1])
    return counts


def report(devices: list[Party], counts: Counts) -> None:
    """Each device creates its twin and reports a temperature some times a second. The last one keeps clients out."""
    for number, device in enumerate(devices):
        twin = {"_policy": policy(is_open=number < DEVICES - 1), "attributes": {"temperature": 20.0}}
        device.say(topic(device.name, "commands/create"), value=twin)
    for device in devices:
        if (answer := device.hear())["status"] != 201:
            raise NotAsPromised(f"{device.name} could not create its twin: {answer}")
    for turn in range(ROUNDS):
        for number, device in enumerate(devices):
            temperature = round(25 + 10 * math.sin((turn + number) / 3), 1)
            device.say(topic(device.name, "commands/modify"), "/attributes/temperature", temperature)
        time.sleep(PAUSE)
    for device in devices:
        for _ in range(ROUNDS):
            if (answer := device.hear())["status"] != 204:
                raise NotAsPromised(f"{device.name} could not report: {answer}")
    counts.reported = DEVICES * ROUNDS
    console.print(f"{DEVICES} twins created, {counts.reported} reports stored and answered\n")


def replay_at_own_pace(client: Party, device: str, counts: Counts) -> None:
    console.rule(f"a client replays the past of {device}, three events first")
    subscription = subscribe(client, device, {"fromHistoricalRevision": 1})
    request(client, device, subscription, 3)
    revisions = [next_revision(client) for _ in range(3)]
    if not client.hears_nothing(1.0):
        raise NotAsPromised("more events came than were requested")
    console.print("      ... the client pauses; nothing comes that it did not ask for ...\n", style="dim")
    request(client, device, subscription, 1_000)
    revisions += list(events_until_complete(client))
    if revisions != list(range(1, ROUNDS + 2)):
        raise NotAsPromised(f"revisions 1 to {ROUNDS + 1} were expected, {revisions} came")
    counts.replayed = len(revisions)


def replay_filtered(client: Party, device: str, counts: Counts) -> None:
    console.rule("only the hot moments: a filter")
    subscription = subscribe(client, device, {"filter": "gt(attributes/temperature,30)"})
    request(client, device, subscription, 1_000)
    counts.filtered = len(list(events_until_complete(client)))
    if not 0 < counts.filtered < ROUNDS:
        raise NotAsPromised(f"some of {ROUNDS} reports were expected, {counts.filtered} came")


def replay_forbidden(client: Party, device: str) -> None:
    console.rule(f"{device} keeps its past to itself")
    subscription = subscribe(client, device, {})
    request(client, device, subscription, 10)
    failed = client.hear()
    if failed["value"].get("error", {}).get("status") != 404:
        raise NotAsPromised(f"a failed event with 404 was expected, {failed} came")


def subscribe(client: Party, device: str, bounds: dict[str, Any]) -> str:
    client.say(topic(device, "streaming/subscribeForPersistedEvents"), value=bounds)
    created = client.hear()
    if not created["topic"].endswith("/created"):
        raise NotAsPromised(f"a created event was expected, {created} came")
    return str(created["value"]["subscriptionId"])


def request(client: Party, device: str, subscription: str, demand: int) -> None:
    client.say(topic(device, "streaming/request"), value={"subscriptionId": subscription, "demand": demand})


def next_revision(client: Party) -> int:
    event = client.hear()
    if not event["topic"].endswith("/next"):
        raise NotAsPromised(f"a next event was expected, {event} came")
    return int(event["value"]["item"]["revision"])


def events_until_complete(client: Party) -> Iterator[int]:
    while not (event := client.hear())["topic"].endswith("/complete"):
        if not event["topic"].endswith("/next"):
            raise NotAsPromised(f"next or complete was expected, {event} came")
        yield int(event["value"]["item"]["revision"])


def summary(counts: Counts, seconds: float) -> None:
    shown = Table(title="What happened", show_header=False)
    shown.add_row("reports stored, each answered when it was on disk", str(counts.reported))
    shown.add_row("events replayed, three first and the rest on request", str(counts.replayed))
    shown.add_row("of them above 30 degrees, by a filter", str(counts.filtered))
    shown.add_row("a replay without permission", "failed with 404, as it should")
    shown.add_row("seconds in all", f"{seconds:.0f}")
    console.print(shown)


if __name__ == "__main__":
    sys.exit(main())
