"""The main job, shown: devices report on MQTT, then others replay the past of one of them over the broker that they use.

Starts the brokers that this machine has and the service with the example connections, lets ten simulated devices report for
a few seconds, and shows the conversations that follow: a back end on AMQP, one on Kafka, a client on MQTT 5 and the device
itself replay the same twin, each at its own pace, and a reader has it in octets; another one asks over Kafka
which devices are hot. Then DuckDB reads the same history from the lake, and has to find what was replayed; the devices cool
down, and are found hot all the same by who asks for ten seconds ago. In the end the service tells how its connections are,
and what they have counted. Ends by itself, with 0 if everything was as it should be; whatever it has started ends with it,
also at Ctrl-C.
"""

from __future__ import annotations

import asyncio
import secrets
import shutil
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from examples import lake, shown
from examples.amqp_party import AmqpParty
from examples.brokers import Found, NoBroker, brokers
from examples.conversation import (
    A_PAGE,
    ALARM,
    AT_FIRST,
    HOT,
    NotAsPromised,
    Replay,
    ask_about_neighbour,
    cool_down,
    create,
    expect_alarm,
    hot_after,
    overheat,
    report,
    search,
    temperature_of,
    twin,
)
from examples.kafka_party import KafkaParty
from examples.lake import Replayed
from examples.monitoring import look_at
from examples.mqtt_party import MqttParty
from examples.party import NoAnswer, Party, quiet
from examples.prepare import NotPrepared, connections_at, prepare
from examples.processes import Interrupted, interruptible
from examples.rsio_client import Ended
from examples.rsio_links import connector
from examples.rsio_reading import WINDOW, read_past
from examples.service import EndedBadly, Serving, service

RUN = Path(".run/demo")
DEVICES = 10
ROUNDS = 60
PAUSE = 0.05
EVENTS = ROUNDS + 1
"""What a device's past consists of: the creation and its reports."""

CONNECTIONS = {"devices": "mqtt", "back-end": "amqp-091", "analytics": "kafka"}
"""Those that are looked at in the end, one for each broker."""

AGO = 10.0
"""Seconds."""

ANALYTICS = {"speaks": "analytics.ask", "listens": "analytics.answers"}

IN_OCTETS = "MQTT 5: all of it in octets"
NEXT_PAGE = 20
FEW = 5


@dataclass(slots=True)
class Story:
    """What the conversation needs to know, and what the summary tells in the end."""

    found: Found
    run: str = field(default_factory=lambda: secrets.token_hex(2))
    """Part of all names, so that a broker which is not ours may remember what it likes."""

    rows: list[tuple[str, str]] = field(default_factory=list)
    replayed: list[Replayed] = field(default_factory=list)

    reported: float = 0.0
    """When everything that is reported had been, on the monotonic clock."""

    missing: dict[str, str] = field(default_factory=dict)
    """What the demo went on without, with what brings it."""

    def __post_init__(self) -> None:
        self.missing |= self.found.missing

    @property
    def devices(self) -> list[str]:
        return [f"boiler-{self.run}-{number:02}" for number in range(DEVICES)]

    @property
    def stove(self) -> str:
        return f"stove-{self.run}"

    @property
    def hot(self) -> list[str]:
        """The twins that are hot after all reports and may be found by others, in their order."""
        return hot_after(ROUNDS, self.devices) + self.overheated

    @property
    def overheated(self) -> list[str]:
        """Of these, the one that is no boiler."""
        return [twin(self.stove)] if self.found.carrying("amqp-091") is not None else []

    def add(self, who: str, got: str) -> None:
        self.rows.append((who, got))

    def add_replay(self, who: str, replay: Replay, condition: str) -> None:
        """A replay of the first device's past; `condition` says in SQL what was asked for."""
        self.add(who, f"{len(replay.revisions)} events")
        self.replayed.append(Replayed(who, twin(self.devices[0]), condition, tuple(replay.revisions)))


def main() -> int:
    shutil.rmtree(RUN, ignore_errors=True)
    begun = time.monotonic()
    try:
        with interruptible():
            story = play()
    except Interrupted as interrupted:
        shown.complain("Stopped. Everything that was started is ended.")
        return interrupted.code
    except NoBroker as error:
        shown.complain(f"No demo without its brokers: {error}")
        shown.complain("Try again; if it stays so, `make clean` and `make demo` begin anew.")
        return 1
    except (NoAnswer, NotAsPromised, NotPrepared, EndedBadly) as error:
        shown.complain(f"The demo failed: {error}\nThe logs are in {RUN}: service.log, and one for each broker.")
        return 1
    story.add("seconds in all", f"{time.monotonic() - begun:.0f}")
    shown.summary(story.rows)
    for name, brought_by in story.missing.items():
        shown.tell(f"{name} was missing; with it there is more to see: {brought_by}")
    return 0


def play() -> Story:
    """Everything, from the start of the brokers to the end of the service."""
    shown.heading("the brokers start, all at once")
    with brokers(RUN, tell=shown.tell) as found:
        for name, brought_by in found.missing.items():
            shown.tell(f"{name} is not here, so the demo goes on without it. To have it: {brought_by}")
        connections = connections_at(found, RUN / "connections")
        prepare(connections)
        without_lake = lake.brought_by()
        with service(RUN, connections, with_lake=without_lake is None) as serving:
            names = ", ".join(file.stem for file in sorted(connections.iterdir()))
            shown.tell(f"the service is ready, its connections are open: {names}")
            story = Story(found)
            converse(story)
            if without_lake is None:
                read_the_lake(story, serving)
                search_what_was_hot(story)
            else:
                story.missing["the lake"] = without_lake
            look_at_connections(story, serving)
    return story


def converse(story: Story) -> None:
    mqtt = story.found.running["mosquitto"]
    with ExitStack() as stack:
        devices: list[Party] = [
            stack.enter_context(
                MqttParty(
                    name,
                    mqtt,
                    speaks=f"devices/{name}/up",
                    listens=f"devices/{name}/down",
                    show=shown.Sparingly() if name == story.devices[0] else quiet,
                )
            )
            for name in story.devices
        ]
        shown.heading(f"{DEVICES} devices report on MQTT; this is how {devices[0].name} begins")
        report(devices, ROUNDS, PAUSE)
        shown.tell(
            f"... {DEVICES} twins, {DEVICES * ROUNDS} reports: each is an event now, answered when it was on disk"
        )
        story.add(f"MQTT: {DEVICES} devices reported", f"{DEVICES * ROUNDS} times")
    if (amqp := story.found.carrying("amqp-091")) is not None:
        with AmqpParty("back end", amqp, speaks="back-end.ask", show=shown.WithoutTheMiddle()) as back_end:
            replay_everything(story, back_end)
            replay_what_is_private(story, back_end)
        with AmqpParty("alarms", amqp, speaks="back-end.ask", listens="back-end.alarms", show=shown.show) as alarms:
            hear_of_alarms(story, alarms)
    if (kafka := story.found.carrying("kafka")) is not None:
        with KafkaParty("analytics", kafka, **ANALYTICS, show=shown.WithoutTheMiddle()) as analytics:
            replay_in_pages(story, analytics)
        with KafkaParty("planner", kafka, **ANALYTICS, show=shown.show) as planner:
            search_what_is_hot(story, planner)
    story.reported = time.monotonic()
    if story.found.carrying("mqtt-5") is not None:
        with MqttParty(
            "gateway",
            mqtt,
            speaks=f"gateways/{story.run}/ask",
            listens=f"gateways/{story.run}/answers",
            is_5=True,
            show=shown.WithoutTheMiddle(),
        ) as gateway:
            replay_what_was_hot(story, gateway)
    read_in_octets(story)
    name = story.devices[0]
    with MqttParty(name, mqtt, speaks=f"devices/{name}/up", listens=f"devices/{name}/down", show=shown.show) as device:
        replay_what_was_missed(story, device)


def replay_everything(story: Story, back_end: Party) -> None:
    shown.heading(f"a back end on {back_end.transport} replays all of it, {FEW} events first")
    replay = Replay(back_end, story.devices[0], {"fromHistoricalRevision": 1})
    replay.next(FEW)
    replay.pause()
    shown.tell("... it pauses; nothing comes that it did not ask for ...")
    replay.rest()
    replay.expect(range(1, EVENTS + 1))
    story.add_replay(f"{back_end.transport}: all of it, {FEW} events first", replay, "revision >= 1")


def replay_what_is_private(story: Story, back_end: Party) -> None:
    shown.heading(f"{story.devices[-1]} keeps its past to itself")
    Replay(back_end, story.devices[-1], {}).expect_refusal()
    story.add(f"{back_end.transport}: a replay without permission", "failed with 404, as it should")


def hear_of_alarms(story: Story, alarms: Party) -> None:
    shown.heading(
        f"a stove above {ALARM} degrees is an alarm on {alarms.transport} at once; a safe keeps its own to itself"
    )
    with ExitStack() as stack:
        stove, safe = (
            stack.enter_context(
                MqttParty(
                    name,
                    story.found.running["mosquitto"],
                    speaks=f"devices/{name}/up",
                    listens=f"devices/{name}/down",
                    show=shown.show,
                )
            )
            for name in (story.stove, f"safe-{story.run}")
        )
        create(stove, is_open=True)
        create(safe, is_open=False)
        overheat(safe)
        reported = overheat(stove)
        alarm_after = expect_alarm(alarms, stove) - reported
        story.add(f"{alarms.transport}: a device overheated", f"heard of after {alarm_after * 1000:.0f} ms")
        shown.tell(
            "the safe overheated, too; who may not read it has heard nothing. Nor may a device ask for its neighbour:"
        )
        ask_about_neighbour(stove, safe)
        story.add("MQTT: a device that asks for its neighbour", "refused, as it should be")


def replay_in_pages(story: Story, analytics: Party) -> None:
    shown.heading(f"a back end on {analytics.transport}: the next {NEXT_PAGE}, the next {NEXT_PAGE}, stop")
    replay = Replay(analytics, story.devices[0], {"fromHistoricalRevision": 1})
    replay.next(NEXT_PAGE)
    replay.next(NEXT_PAGE)
    replay.stop()
    replay.expect(range(1, 2 * NEXT_PAGE + 1))
    story.add_replay(f"{analytics.transport}: two pages, then stop", replay, f"revision <= {2 * NEXT_PAGE}")


def search_what_is_hot(story: Story, planner: Party) -> None:
    shown.heading(f"a planner on {planner.transport} asks which devices are above {HOT} degrees, {A_PAGE} on a page")
    found = search(planner, f"gt(attributes/temperature,{HOT})")
    if found != story.hot:
        raise NotAsPromised(f"{story.hot} were expected to be hot, {found} came")
    story.add(f"{planner.transport}: which devices are above {HOT} degrees", f"{len(found)} devices")


def replay_what_was_hot(story: Story, gateway: Party) -> None:
    shown.heading(f"a client on {gateway.transport} wants what was above {HOT} degrees")
    replay = Replay(gateway, story.devices[0], {"filter": f"gt(attributes/temperature,{HOT})"})
    replay.rest()
    if not 0 < len(replay.revisions) < ROUNDS:
        raise NotAsPromised(f"some of {ROUNDS} reports were expected, {len(replay.revisions)} came")
    is_hot = f"path = '/attributes/temperature' AND CAST(value AS DOUBLE) > {HOT}"
    story.add_replay(f"{gateway.transport}: only what was above {HOT} degrees", replay, is_hot)


def replay_what_was_missed(story: Story, device: Party) -> None:
    shown.heading(f"{device.name} was away: its own last three changes, two first")
    replay = Replay(device, device.name, {"fromHistoricalRevision": -3})
    replay.next(2)
    replay.pause()
    replay.rest()
    replay.expect(range(EVENTS - 2, EVENTS + 1))
    newest = f"revision > {EVENTS - 3}"
    story.add_replay(f"{device.transport}: the device's own last three, two first", replay, newest)


def read_in_octets(story: Story) -> None:
    """The same past in the binary protocol, whole, and then one number of each event."""
    broker = story.found.carrying("mqtt-5")
    if broker is None:
        return
    name = story.devices[0]
    shown.heading(
        f"a reader on MQTT 5 speaks reactive-streams-io: all of it, {WINDOW} at a time, then a number of each"
    )
    try:
        connect = connector(f"mqtt://{broker.host}:{broker.port}")
        read = asyncio.run(read_past(connect, name, shown.raw("reader", "MQTT 5")))
    except (Ended, OSError) as error:
        raise NoAnswer(f"the past of {name} was expected in octets: {error or type(error).__name__}") from error
    expected = [AT_FIRST, *(temperature_of(turn, 0) for turn in range(ROUNDS))]
    if (read.revisions, read.temperatures) != (list(range(1, EVENTS + 1)), expected):
        raise NotAsPromised(f"{EVENTS} events and as many temperatures were expected, {read} came")
    story.add(IN_OCTETS, f"{EVENTS} events, then {EVENTS} numbers: {read.raw} octets in {read.messages} messages")
    story.replayed.append(Replayed(IN_OCTETS, twin(name), "revision >= 1", tuple(read.revisions)))


def read_the_lake(story: Story, serving: Serving) -> None:
    """The same history once more, from the files that Spark has written: nothing of ours is asked."""
    shown.heading("meanwhile Spark fills the lake; DuckDB reads the same history there")
    lake.wait_until_filled(serving, shown.tell)
    events = lake.open_events(serving.data)
    for replayed in story.replayed:
        shown.tell(f"DuckDB: {replayed.query}")
        found = lake.find(events, replayed)
        shown.tell(f"{len(found):>8} events, the same revisions that came by {replayed.who.partition(':')[0]}")
    count, expected = lake.total(events, [twin(name) for name in story.devices]), DEVICES * EVENTS
    if count != expected:
        raise NotAsPromised(f"{expected} events of {DEVICES} devices were expected in the lake, {count} are there")
    story.add("DuckDB: the same from the lake", f"{sum(len(it.revisions) for it in story.replayed)} events")
    story.add(f"DuckDB: all of {DEVICES} devices", f"{count} events")


def search_what_was_hot(story: Story) -> None:
    """The devices cool down, and are found as they were before."""
    planner_at = story.found.carrying("kafka")
    if planner_at is None:
        return
    # Ten seconds ago every report has to have been made.
    time.sleep(max(0.0, story.reported + AGO - time.monotonic()))
    then = datetime.now(UTC) - timedelta(seconds=AGO)
    shown.heading(f"the devices cool down; a planner on Kafka asks for now, and as of {AGO:.0f} seconds ago")
    with ExitStack() as stack:
        cool_down(
            [
                stack.enter_context(
                    MqttParty(
                        name,
                        story.found.running["mosquitto"],
                        speaks=f"devices/{name}/up",
                        listens=f"devices/{name}/down",
                    )
                )
                for name in story.devices
            ]
        )
    wanted = f"gt(attributes/temperature,{HOT})"
    with KafkaParty("planner", planner_at, **ANALYTICS, show=shown.show) as planner:
        if (now := search(planner, wanted)) != story.overheated:
            raise NotAsPromised(f"{story.overheated} were expected to be hot now, {now} came")
        begun = time.monotonic()
        found = search(planner, wanted, at_historical_timestamp=then.isoformat().replace("+00:00", "Z"))
        took = time.monotonic() - begun
    if found != story.hot:
        raise NotAsPromised(f"{story.hot} were expected to have been hot, {found} came")
    shown.tell(f"Spark has looked for them in the lake, for {took:.1f} s")
    story.add(f"Kafka: the same as of {AGO:.0f} seconds ago", f"{len(found)} devices; {len(now)} now")


def look_at_connections(story: Story, serving: Serving) -> None:
    """What an operator sees of it: status and metrics of the connection to each broker."""
    shown.heading("what an operator sees: the connections, and the messages that they have taken and sent")
    there = [name for name, broker in CONNECTIONS.items() if story.found.carrying(broker) is not None]
    shown.connections([look_at(serving, name) for name in there])
    shown.tell("failures are what was refused above, as it should be: somebody asked for what he may not read")


if __name__ == "__main__":
    sys.exit(main())
