"""Kills while a stream is written and read: each message is stored once, and read in order.

The reader requests missing messages. The service is killed (SIGKILL), and the broker is killed and restarted. Writer and
reader are processes, and so is the checker, which is first shown to catch each kind of fault (Streamr protocol, sessions and
offsets).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.dice import dice
from tests.support.kill_series.series_broker import (
    AmqpKillSeriesBroker,
    BrokerOfKind,
    KillSeriesBroker,
    Mqtt5KillSeriesBroker,
)
from tests.support.kill_series.stream_checker import Known, Message, findings
from tests.support.kill_series.stream_load import Reader
from tests.support.kill_series.stream_series import FRAMES, READ, TCP_FRAMES, StreamKillSeries

KILLS = 20

STORED = [Message(1, None, 5, "a"), Message(2, 1, 6, "b"), Message(3, 2, 7, "c")]


# ── the checker ───────────────────────────────────────────────────────────────────────────────────────────────────────


def found_in(
    stored: Sequence[Message] = STORED,
    got: Sequence[Message] = STORED,
    read: Sequence[tuple[int, int]] = ((1, 5), (2, 6), (3, 7)),
    published: Sequence[int] = (5, 6, 7),
) -> list[str]:
    return findings(published, Known(got={0: list(got)}, read={0: list(read)}), {0: list(stored)})


def test_the_checker_accepts_ordered_messages_with_repetitions() -> None:
    assert found_in(got=[STORED[0], STORED[2], STORED[0], STORED[1]]) == []


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        pytest.param(found_in(published=(5, 6, 7, 8)), "8 was published and is lost", id="loss"),
        pytest.param(found_in([*STORED, Message(4, 3, 6, "d")]), "6 is stored 2 times", id="repeat"),
        pytest.param(found_in(published=(5, 7)), "6 is stored and was never published", id="out of nowhere"),
        pytest.param(found_in([STORED[0], STORED[2]]), "0: 3 names 2 as its predecessor, expected 1", id="gap"),
        pytest.param(found_in(got=[*STORED, Message(4, 3, 8, "d")]), "0: 4 came and is not stored", id="too early"),
        pytest.param(found_in(got=[Message(2, 1, 6, "z")]), "2 came as another message", id="another message"),
        pytest.param(found_in(read=[(1, 5), (3, 7)]), "as number 2 the reader handed on (3, 7)", id="left out"),
        pytest.param(found_in(read=[(1, 5), (2, 6)]), "as number 3 the reader handed on None", id="cut off"),
    ],
)
def test_the_checker_catches_a_planted_fault(found: list[str], expected: str) -> None:
    assert any(expected in finding for finding in found), found


def test_the_reader_requests_a_gap_until_it_is_filled_and_passes_messages_on_in_order() -> None:
    """As the protocol's own clients do; it subscribes once."""
    sent: list[dict[str, object]] = []
    noted: list[dict[str, object]] = []
    reader = Reader(sent.append, noted.append)
    about = {"stream": "acme.kill:tank", "partition": 0}

    def came(kind: int, offset: int, previous: int | None, now: float) -> None:
        reader.take([0, kind, "", [28, "", 0, 1, 0, offset, previous, 27, f'{{"n":{offset}}}']], now)

    reader.look(0.0)
    reader.look(1.0)
    assert sent == [{**about, "type": "subscribe"}, {**about, "type": "subscribe", "partition": 1}]
    reader.take([0, 2, "", about], 1.0)
    came(0, 4, 3, 1.0)
    came(0, 7, 6, 1.0)
    hole = {**about, "type": "resend", "sub": "0-1", "resend_from": 1, "resend_to": 3}
    assert sent[2:] == [hole]
    reader.take([0, 7, "", {**about, "sub": "0-1", "error": "interrupted"}], 2.0)
    reader.look(3.1)
    assert sent[3:] == [{**hole, "sub": "0-2"}]
    for offset, previous in ((1, None), (2, 1), (3, 2)):
        came(1, offset, previous, 4.0)
    reader.take([0, 5, "", {**about, "sub": "0-2"}], 4.0)
    assert sent[4:] == [{**about, "type": "resend", "sub": "0-3", "resend_from": 5, "resend_to": 6}]
    assert [line["read"] for line in noted if "read" in line] == [1, 2, 3, 4]


def test_a_recall_is_not_requested_again_while_its_messages_come() -> None:
    sent: list[dict[str, object]] = []
    reader = Reader(sent.append, lambda _line: None, recalls=True)
    reader.look(0.0)
    assert len(sent) == 2
    for offset, now in ((1, 6.0), (2, 12.0)):
        for partition in (0, 1):
            message = [28, "", partition, 1, 0, offset, offset - 1 or None, 27, f'{{"n":{offset}}}']
            reader.take([0, 0, "", message], now)
        reader.look(now)
    assert len(sent) == 2
    reader.look(22.0)
    assert len(sent) == 4


# ── kills ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def kill(folder: Path, series_broker: KillSeriesBroker, rounds: int, *readers: str, most: int = 120) -> str:
    """Kill service and broker in turn, each after fewer than `most` messages, and both at once."""
    chances = dice("streams", series_broker.kind)
    with StreamKillSeries(folder, series_broker, *readers) as series:
        for _ in range(rounds):
            series.kill_service_after(chances.randrange(20, most))
            series.restart_broker_after(chances.randrange(20, most), gently=chances.random() < 0.5)
            if rounds > 1 and chances.random() < 0.3:
                series.wait_for(chances.randrange(20, 60))
                series.kill_service()
                series.restart_broker()
                series.service.start_again(ready=False)
        series.wait_for(20)
        return series.decision()


@pytest.mark.slow(reason="a real broker and the service end and start under load")
@pytest.mark.broker("mosquitto")
def test_published_messages_are_stored_once_and_read_in_order(killed_broker: BrokerOfKind, tmp_path: Path) -> None:
    """By a client of Streamr, and in frames of reactive-streams-io over the broker."""
    print(kill(tmp_path, killed_broker(Mqtt5KillSeriesBroker), 1, READ, FRAMES, most=40))


@pytest.mark.soak(shard="kills-streams")
def test_the_same_through_a_tcp_listener_too(killed_broker: BrokerOfKind, tmp_path: Path) -> None:
    print(kill(tmp_path, killed_broker(AmqpKillSeriesBroker), 1, READ, FRAMES, TCP_FRAMES))


@pytest.mark.soak(shard="kills-streams")
@pytest.mark.parametrize("kind", [AmqpKillSeriesBroker, Mqtt5KillSeriesBroker])
def test_the_same_through_many_kills(killed_broker: BrokerOfKind, kind: type[KillSeriesBroker], tmp_path: Path) -> None:
    print(kill(tmp_path, killed_broker(kind), KILLS, READ))
