"""Replays of journal and lake over MQTT, while a real pipeline fills and compacts the lake.

Files that only older table versions need are removed meanwhile.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from spark_store.lake.tables import EVENTS, Lake
from tests.support.brokers.mosquitto import Mosquitto
from tests.support.clients.mqtt import MqttClient
from tests.support.connection_documents import READ, Reader, client, connection, policy_for, source, topic
from tests.support.lake.pipeline_process import WITHIN, DataFolder, PipelineProcess, given
from tests.support.service_process import ServiceProcess
from tests.support.wait import wait_until_sync

pytestmark = [pytest.mark.spark, pytest.mark.broker("mosquitto")]

ROUNDS, EACH = 3, 40
LAMP = "lamp-border"


@contextlib.contextmanager
def removing(lake: Lake) -> Iterator[set[str]]:
    """Remove files that only older versions of `events` need; yield the names of the removed ones.

    VACUUM does so after a day.
    """
    gone: set[str] = set()
    seen: set[str] = set()
    stop = threading.Event()

    def remove() -> None:
        while not stop.wait(0.02):
            with contextlib.suppress(DeltaError, OSError):
                needed = set(DeltaTable(lake.path(EVENTS)).file_uris())
                for old in seen - needed:
                    Path(old).unlink(missing_ok=True)
                    gone.add(old)
                seen.update(needed)

    thread = threading.Thread(target=remove)
    thread.start()
    try:
        yield gone
    finally:
        stop.set()
        thread.join()


def replay(reader: MqttClient, value: dict[str, Any], at_a_time: int = 25) -> list[dict[str, Any]]:
    """The items of a whole replay, so many at a time."""
    subscription = Reader(reader, LAMP, value)
    items: list[dict[str, Any]] = []
    while True:
        subscription.request(at_a_time)
        for _ in range(at_a_time):
            message = reader.next(60)
            if message["topic"].endswith("/complete"):
                return items
            assert message["topic"].endswith("/next"), message
            items.append(message["value"]["item"])


def expected(newest: int) -> list[tuple[int, Any]]:
    return [(revision, revision) for revision in range(2, newest + 1)]


def found(items: list[dict[str, Any]]) -> list[tuple[int, Any]]:
    assert [item["revision"] for item in items] == list(range(1, len(items) + 1))
    return [(item["revision"], item["value"]) for item in items[1:]]


@pytest.mark.soak(shard="lake-processes")
def test_replays_run_across_the_border_while_the_lake_is_written_compacted_and_tidied(
    mosquitto: Mosquitto, tmp_path: Path
) -> None:
    data_folder = DataFolder(tmp_path / "data")
    document = connection(mosquitto, source("b/writer", "acme:writer"), source("b/reader", "acme:reader"))
    settings: dict[str, Any] = {
        "spark": {"mode": "external"},
        "journal": {"retention": "0s", "historical_headers": ["ditto-originator"]},
    }
    with (
        ServiceProcess.start(tmp_path, [document], **settings) as service,
        client(mosquitto, "b/writer") as writer,
        client(mosquitto, "b/reader") as reader,
    ):
        policy = policy_for("acme:writer", acme_reader={"thing:/": READ})
        value = {"_policy": policy, "attributes": {"counter": 1}}
        assert writer.ask_for(topic(LAMP, "commands/create"), value=value)["status"] == 201
        newest = 1

        def write(count: int) -> None:
            nonlocal newest
            for _ in range(count):
                newest += 1
                answer = writer.ask_for(topic(LAMP, "commands/modify"), "/attributes/counter", newest)
                assert answer["status"] == 204, answer

        def is_trimmed() -> bool:
            return service.metric("connectivity_journal_trimmed_total") == newest + 1  # with the policy's one

        options = given(master="local[2]", optimize_batches=1)
        with PipelineProcess(data_folder, "run", *options) as pipeline, removing(data_folder.lake) as gone:
            for _ in range(ROUNDS):
                write(EACH)
                # At any point of a batch, a compaction or a trimming step, or between them.
                assert found(replay(reader, {})) == expected(newest)
                wait_until_sync(
                    lambda: pipeline.keeps_running() and service.metric("connectivity_lake_lag_events") == 0, WITHIN
                )
                assert found(replay(reader, {})) == expected(newest)
            wait_until_sync(lambda: pipeline.keeps_running() and is_trimmed(), WITHIN)
            pipeline.wait_for("maintenance")
            wait_until_sync(lambda: pipeline.keeps_running() and bool(gone), WITHIN)
            assert pipeline.stop() == 0
        write(5)
        items = replay(reader, {"fromHistoricalRevision": 1})
        assert found(items) == expected(newest)
        assert {item["headers"]["historical-headers"]["ditto-originator"] for item in items} == {"acme:writer"}
        assert [item["revision"] for item in replay(reader, {"filter": "eq(attributes/counter,7)"})] == [7]
        instants = {"fromHistoricalTimestamp": items[2]["timestamp"], "toHistoricalTimestamp": items[-3]["timestamp"]}
        assert [item["revision"] for item in replay(reader, instants)] == list(range(4, newest - 2))
        past = reader.ask_for(topic(LAMP, "commands/retrieve"), "/attributes", headers={"at-historical-revision": 9})
        assert (past["value"], past["headers"]["historical-headers"]) == (
            {"counter": 9},
            {"ditto-originator": "acme:writer"},
        )
        # The lake is missing: reads of its events fail with an error; others work.
        events = Path(data_folder.lake.path(EVENTS))
        events.rename(events.with_name("elsewhere"))
        lost = Reader(reader, LAMP, {})
        lost.request(10)
        failed = reader.next()
        assert failed["topic"].endswith("/failed"), failed
        assert (failed["value"]["error"]["status"], failed["value"]["error"]["error"]) == (500, "internalerror")
        assert [item["revision"] for item in replay(reader, {"fromHistoricalRevision": -5})] == list(
            range(newest - 4, newest + 1)
        )
        events.with_name("elsewhere").rename(events)
        assert found(replay(reader, {})) == expected(newest)
    assert any(it["event"] == "journal trimmed" for it in service.records())
