"""The demo: devices report over MQTT, and clients replay the history over their own brokers.

`make demo` starts the brokers of this machine and the service with the example connections, and prints what happens:

- Ten simulated devices report temperatures.
- A back end on AMQP, one on Kafka, a client on MQTT 5 and the device itself replay the history of one device, each at its
  own pace. A reader reads it in binary frames. A planner on Kafka searches for hot devices.
- DuckDB reads the same history from the lake. After the devices cool down, a search of the past still finds the hot ones.
- The service reports the status and the metrics of its connections.

The exit code is 0 if every result is as documented. All started programs stop at the end, also after Ctrl-C.
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

from examples import lake, terminal
from examples.amqp_client import AmqpClient
from examples.broker_client import BrokerClient, MessagePrinter, NoResponse, print_nothing
from examples.brokers import AvailableBrokers, BrokerFailed, brokers
from examples.kafka_client import KafkaClient
from examples.lake import ReplayResult
from examples.monitoring import connection_report
from examples.mqtt_client import MqttClient
from examples.prepare import PreparationFailed, prepare, write_connections
from examples.processes import Interrupted, interruptible
from examples.rsio_client import StreamError
from examples.rsio_links import connector
from examples.rsio_reader import WINDOW, read_history
from examples.scenario import (
    ALARM,
    HOT,
    INITIAL_TEMPERATURE,
    PAGE_SIZE,
    Replay,
    UnexpectedResult,
    cool_down,
    create,
    expect_alarm,
    expect_refusal,
    hot_things,
    overheat,
    report,
    search,
    temperature,
    thing_id,
)
from examples.service import RunningService, ServiceFailed, service

RUN = Path(".run/demo")
DEVICES = 10
ROUNDS = 60
PAUSE = 0.05
EVENTS = ROUNDS + 1
"""The events of a device: its creation and its reports."""

CONNECTIONS = {"devices": "mqtt", "back-end": "amqp-091", "analytics": "kafka"}
"""The connections in the report at the end, one for each broker, and their types."""

PAST_SECONDS = 10.0

ANALYTICS = {"publish_to": "analytics.ask", "receive_from": "analytics.answers"}

BINARY_REPLAY = "MQTT 5: all events in binary frames"
NEXT_PAGE = 20
FEW = 5


@dataclass(slots=True)
class DemoState:
    """The names of a run of the demo, and its results for the summary."""

    available: AvailableBrokers
    run: str = field(default_factory=lambda: secrets.token_hex(2))
    """A part of all names, because a broker may have retained messages of earlier runs."""

    rows: list[tuple[str, str]] = field(default_factory=list)
    replays: list[ReplayResult] = field(default_factory=list)

    reported_at: float = 0.0
    """When the last report was made, on the monotonic clock."""

    missing: dict[str, str] = field(default_factory=dict)
    """The install command of each missing part."""

    def __post_init__(self) -> None:
        self.missing |= self.available.missing

    @property
    def devices(self) -> list[str]:
        return [f"boiler-{self.run}-{number:02}" for number in range(DEVICES)]

    @property
    def stove(self) -> str:
        return f"stove-{self.run}"

    @property
    def hot(self) -> list[str]:
        """The ids of the twins that a search for hot devices finds after all reports, in its order."""
        return hot_things(ROUNDS, self.devices) + self.overheated

    @property
    def overheated(self) -> list[str]:
        """The id of the stove's twin, which stays hot. The stove needs the broker of the alarms."""
        return [thing_id(self.stove)] if self.available.of_type("amqp-091") is not None else []

    def add(self, name: str, result: str) -> None:
        self.rows.append((name, result))

    def add_replay(self, name: str, replay: Replay, condition: str) -> None:
        """Add a replay of the first device. `condition` is the SQL condition that selects the same events."""
        self.add(name, f"{len(replay.revisions)} events")
        self.replays.append(ReplayResult(name, thing_id(self.devices[0]), condition, tuple(replay.revisions)))

    def device_client(self, name: str, printer: MessagePrinter = print_nothing) -> MqttClient:
        mqtt = self.available.running["mosquitto"]
        return MqttClient(
            name, mqtt, publish_to=f"devices/{name}/up", receive_from=f"devices/{name}/down", printer=printer
        )


def main() -> int:
    shutil.rmtree(RUN, ignore_errors=True)
    begin = time.monotonic()
    try:
        with interruptible():
            state = run_demo()
    except Interrupted as interrupted:
        terminal.print_error("Stopped. All started programs have ended.")
        return interrupted.code
    except BrokerFailed as error:
        terminal.print_error(f"The demo needs its brokers: {error}")
        terminal.print_error("Try again. If it still fails, run `make clean` and `make demo`.")
        return 1
    except (NoResponse, UnexpectedResult, PreparationFailed, ServiceFailed) as error:
        terminal.print_error(f"The demo failed: {error}\nThe logs are in {RUN}: service.log, and one for each broker.")
        return 1
    state.add("duration in seconds", f"{time.monotonic() - begin:.0f}")
    terminal.print_summary(state.rows)
    for name, install_command in state.missing.items():
        terminal.print_note(f"{name} was missing, so the demo was shorter. To install it: {install_command}")
    return 0


def run_demo() -> DemoState:
    """Run everything, from the start of the brokers to the stop of the service."""
    terminal.print_heading("the brokers start")
    with brokers(RUN, progress=terminal.print_note) as available:
        for name, install_command in available.missing.items():
            terminal.print_note(f"{name} is missing; the demo continues without it. To install it: {install_command}")
        connections = write_connections(available, RUN / "connections")
        prepare(connections)
        lake_install_command = lake.install_command()
        with service(RUN, connections, with_lake=lake_install_command is None) as running_service:
            names = ", ".join(file.stem for file in sorted(connections.iterdir()))
            terminal.print_note(f"the service is ready, its connections are open: {names}")
            state = DemoState(available)
            exchange_messages(state)
            if lake_install_command is None:
                read_lake(state, running_service)
                search_past(state)
            else:
                state.missing["the lake"] = lake_install_command
            print_connections(state, running_service)
    return state


def exchange_messages(state: DemoState) -> None:
    """Report, replay and search over every available broker."""
    with ExitStack() as stack:
        devices: list[BrokerClient] = [
            stack.enter_context(
                state.device_client(
                    name, terminal.FirstMessagesPrinter() if name == state.devices[0] else print_nothing
                )
            )
            for name in state.devices
        ]
        terminal.print_heading(f"{DEVICES} devices report on MQTT; these are the first messages of {devices[0].name}")
        report(devices, ROUNDS, PAUSE)
        terminal.print_note(f"... {DEVICES} twins, {DEVICES * ROUNDS} reports: each is stored on disk as an event")
        state.add(f"MQTT: reports of {DEVICES} devices", f"{DEVICES * ROUNDS} reports")
    if (amqp := state.available.of_type("amqp-091")) is not None:
        with AmqpClient("back end", amqp, publish_to="back-end.ask", printer=terminal.ReplayPrinter()) as back_end:
            replay_everything(state, back_end)
            replay_private_twin(state, back_end)
        with AmqpClient(
            "alarms", amqp, publish_to="back-end.ask", receive_from="back-end.alarms", printer=terminal.print_message
        ) as alarms:
            receive_alarm(state, alarms)
    if (kafka := state.available.of_type("kafka")) is not None:
        with KafkaClient("analytics", kafka, **ANALYTICS, printer=terminal.ReplayPrinter()) as analytics:
            replay_pages(state, analytics)
        with KafkaClient("planner", kafka, **ANALYTICS, printer=terminal.print_message) as planner:
            search_hot(state, planner)
    state.reported_at = time.monotonic()
    if (mqtt_5 := state.available.of_type("mqtt-5")) is not None:
        with MqttClient(
            "gateway",
            mqtt_5,
            publish_to=f"gateways/{state.run}/ask",
            receive_from=f"gateways/{state.run}/answers",
            is_5=True,
            printer=terminal.ReplayPrinter(),
        ) as gateway:
            replay_hot(state, gateway)
    replay_in_frames(state)
    with state.device_client(state.devices[0], terminal.print_message) as device:
        replay_last_changes(state, device)


def replay_everything(state: DemoState, back_end: BrokerClient) -> None:
    terminal.print_heading(f"a back end on {back_end.transport} replays all events, {FEW} of them first")
    replay = Replay(back_end, state.devices[0], {"fromHistoricalRevision": 1})
    replay.next(FEW)
    replay.pause()
    terminal.print_note("... it pauses: without a request, no event arrives ...")
    replay.rest()
    replay.expect(range(1, EVENTS + 1))
    state.add_replay(f"{back_end.transport}: all events, {FEW} of them first", replay, "revision >= 1")


def replay_private_twin(state: DemoState, back_end: BrokerClient) -> None:
    terminal.print_heading(f"only devices can read the twin of {state.devices[-1]}")
    Replay(back_end, state.devices[-1], {}).expect_refusal()
    state.add(f"{back_end.transport}: a replay without permission", "404, as expected")


def receive_alarm(state: DemoState, alarms: BrokerClient) -> None:
    terminal.print_heading(
        f"a stove above {ALARM} degrees causes an alarm on {alarms.transport}; a safe, whose twin is private, does not"
    )
    with ExitStack() as stack:
        stove, safe = (
            stack.enter_context(state.device_client(name, terminal.print_message))
            for name in (state.stove, f"safe-{state.run}")
        )
        create(stove, is_open=True)
        create(safe, is_open=False)
        overheat(safe)
        reported_at = overheat(stove)
        delay = expect_alarm(alarms, stove) - reported_at
        state.add(f"{alarms.transport}: the alarm of a device", f"received after {delay * 1000:.0f} ms")
        terminal.print_note("the service also refuses a command of the stove for the twin of the safe:")
        expect_refusal(stove, safe)
        state.add("MQTT: a command for the twin of another device", "refused, as expected")


def replay_pages(state: DemoState, analytics: BrokerClient) -> None:
    terminal.print_heading(
        f"a back end on {analytics.transport} requests {NEXT_PAGE} events, then {NEXT_PAGE} more, and cancels"
    )
    replay = Replay(analytics, state.devices[0], {"fromHistoricalRevision": 1})
    replay.next(NEXT_PAGE)
    replay.next(NEXT_PAGE)
    replay.stop()
    replay.expect(range(1, 2 * NEXT_PAGE + 1))
    state.add_replay(f"{analytics.transport}: two pages, then cancel", replay, f"revision <= {2 * NEXT_PAGE}")


def search_hot(state: DemoState, planner: BrokerClient) -> None:
    terminal.print_heading(
        f"a planner on {planner.transport} searches for devices above {HOT} degrees, {PAGE_SIZE} in a page"
    )
    found = search(planner, f"gt(attributes/temperature,{HOT})")
    if found != state.hot:
        raise UnexpectedResult(f"found {found} above {HOT} degrees, expected {state.hot}")
    state.add(f"{planner.transport}: a search for devices above {HOT} degrees", f"{len(found)} devices")


def replay_hot(state: DemoState, gateway: BrokerClient) -> None:
    terminal.print_heading(f"a client on {gateway.transport} replays only temperatures above {HOT} degrees")
    replay = Replay(gateway, state.devices[0], {"filter": f"gt(attributes/temperature,{HOT})"})
    replay.rest()
    if not 0 < len(replay.revisions) < ROUNDS:
        raise UnexpectedResult(f"found {len(replay.revisions)} reports above {HOT} degrees, expected some of {ROUNDS}")
    is_hot = f"path = '/attributes/temperature' AND CAST(value AS DOUBLE) > {HOT}"
    state.add_replay(f"{gateway.transport}: only above {HOT} degrees", replay, is_hot)


def replay_last_changes(state: DemoState, device: BrokerClient) -> None:
    terminal.print_heading(f"{device.name} was offline, and replays its own last three changes, two of them first")
    replay = Replay(device, device.name, {"fromHistoricalRevision": -3})
    replay.next(2)
    replay.pause()
    replay.rest()
    replay.expect(range(EVENTS - 2, EVENTS + 1))
    newest = f"revision > {EVENTS - 3}"
    state.add_replay(f"{device.transport}: the device's last three changes", replay, newest)


def replay_in_frames(state: DemoState) -> None:
    """Replay the same history in the binary protocol: all events, then only one number of each event."""
    broker = state.available.of_type("mqtt-5")
    if broker is None:
        return
    name = state.devices[0]
    terminal.print_heading(
        f"a reader on MQTT 5 uses reactive-streams-io: all events, {WINDOW} at a time, then one number of each"
    )
    try:
        connect = connector(f"mqtt://{broker.host}:{broker.port}")
        result = asyncio.run(read_history(connect, name, terminal.frame_printer("reader", "MQTT 5")))
    except (StreamError, OSError) as error:
        raise NoResponse(f"the history of {name} was not read in frames: {error or type(error).__name__}") from error
    expected = [INITIAL_TEMPERATURE, *(temperature(turn, 0) for turn in range(ROUNDS))]
    if (result.revisions, result.temperatures) != (list(range(1, EVENTS + 1)), expected):
        raise UnexpectedResult(f"found {result}, expected {EVENTS} events and as many temperatures")
    sizes = f"{result.size} bytes in {result.messages} messages"
    state.add(BINARY_REPLAY, f"{EVENTS} events, then {EVENTS} numbers: {sizes}")
    state.replays.append(ReplayResult(BINARY_REPLAY, thing_id(name), "revision >= 1", tuple(result.revisions)))


def read_lake(state: DemoState, running_service: RunningService) -> None:
    """Read the same history from the files of the lake, without the service."""
    terminal.print_heading("Spark writes the lake; DuckDB reads the same history there")
    lake.wait_until_filled(running_service, terminal.print_note)
    events = lake.open_events(running_service.data)
    for replay in state.replays:
        terminal.print_note(f"DuckDB: {replay.query}")
        found = lake.find_revisions(events, replay)
        transport = replay.client.partition(":")[0]
        terminal.print_note(f"{len(found):>8} events, with the same revisions as over {transport}")
    count, expected = lake.count_events(events, [thing_id(name) for name in state.devices]), DEVICES * EVENTS
    if count != expected:
        raise UnexpectedResult(f"found {count} events of {DEVICES} devices in the lake, expected {expected}")
    state.add("DuckDB: the same events in the lake", f"{sum(len(it.revisions) for it in state.replays)} events")
    state.add(f"DuckDB: all events of {DEVICES} devices", f"{count} events")


def search_past(state: DemoState) -> None:
    """After the devices cool down, search for hot devices now and in the past."""
    kafka = state.available.of_type("kafka")
    if kafka is None:
        return
    # At the time of the search in the past, all reports must have been made.
    time.sleep(max(0.0, state.reported_at + PAST_SECONDS - time.monotonic()))
    past = datetime.now(UTC) - timedelta(seconds=PAST_SECONDS)
    terminal.print_heading(
        f"the devices cool down; a planner on Kafka searches the current state, and the state {PAST_SECONDS:.0f} s ago"
    )
    with ExitStack() as stack:
        cool_down([stack.enter_context(state.device_client(name)) for name in state.devices])
    is_hot = f"gt(attributes/temperature,{HOT})"
    with KafkaClient("planner", kafka, **ANALYTICS, printer=terminal.print_message) as planner:
        if (now := search(planner, is_hot)) != state.overheated:
            raise UnexpectedResult(f"found {now} above {HOT} degrees now, expected {state.overheated}")
        begin = time.monotonic()
        found = search(planner, is_hot, at_historical_timestamp=past.isoformat().replace("+00:00", "Z"))
        duration = time.monotonic() - begin
    if found != state.hot:
        raise UnexpectedResult(f"found {found} above {HOT} degrees in the past, expected {state.hot}")
    terminal.print_note(f"Spark has searched the lake for {duration:.1f} s")
    state.add(f"Kafka: the same search, {PAST_SECONDS:.0f} s ago and now", f"{len(found)} devices, {len(now)} now")


def print_connections(state: DemoState, running_service: RunningService) -> None:
    """Print the status and the metrics of the connection to each broker."""
    terminal.print_heading("the view of an operator: connections, and their consumed and published messages")
    names = [name for name, broker in CONNECTIONS.items() if state.available.of_type(broker) is not None]
    terminal.print_connections([connection_report(running_service, name) for name in names])
    terminal.print_note("failures are the failed steps of the refused requests above")


if __name__ == "__main__":
    sys.exit(main())
