"""The most specific of the client library's errors is reported, in any order."""

from __future__ import annotations

from itertools import permutations

import pytest
from confluent_kafka import KafkaError

from connectivity.errors import Detail, NotConnected
from connectivity.transports.kafka.errors import ALL_DOWN
from connectivity.transports.kafka.link import KafkaLink

DISCONNECTED = KafkaError(KafkaError._TRANSPORT, "localhost:9092/1: Disconnected (after 812ms in state UP)")
REFUSED = KafkaError(
    KafkaError._TRANSPORT, "localhost:9092/1: Connect to ipv4#127.0.0.1:9092 failed: Connection refused"
)
LOGIN = KafkaError(KafkaError._AUTHENTICATION, "localhost:9092/1: SASL authentication error: invalid credentials")
DOWN = KafkaError(ALL_DOWN, "1/1 brokers are down")


@pytest.mark.parametrize("errors", [*permutations([DISCONNECTED, REFUSED, DOWN])])
async def test_a_refused_connection_takes_precedence_over_a_cut_one(errors: tuple[KafkaError, ...]) -> None:
    link = KafkaLink([])
    for error in errors:
        link.failed(error, "")
    assert link.down.is_set()
    assert (await link.reason(0)).detail is Detail.REFUSED


@pytest.mark.parametrize("errors", [*permutations([DISCONNECTED, LOGIN, REFUSED])])
async def test_a_refused_login_takes_precedence_over_the_errors_that_follow_it(errors: tuple[KafkaError, ...]) -> None:
    link = KafkaLink([])
    for error in errors:
        link.failed(error, "")
    assert (await link.reason(0)).detail is Detail.BAD_CREDENTIALS


@pytest.mark.parametrize(
    "text",
    [
        "SASL PLAIN mechanism handshake failed: Local: Broker transport failure: broker's supported mechanisms: (n/a)",
        "SASL authentication error: SaslAuthenticateRequest failed: Local: Timed out (after 10004ms in state AUTH_REQ)",
    ],
)
async def test_a_connection_that_is_lost_during_a_login_is_no_refused_login(text: str) -> None:
    """The library reports it as one, at the start of a connection and when a broker requires the login again."""
    link = KafkaLink([])
    link.mark_started()
    link.failed(KafkaError(KafkaError._AUTHENTICATION, f"sasl_plaintext://localhost:9092/1: {text}"), "")
    assert not link.lost.done()
    assert (await link.reason(0)).retry


async def test_the_later_of_two_equally_specific_errors_is_reported() -> None:
    link = KafkaLink([])
    timed_out = KafkaError(KafkaError._TRANSPORT, "localhost:9092/1: Connection setup timed out in state CONNECT")
    link.failed(REFUSED, "")
    link.failed(timed_out, "")
    assert (await link.reason(0)).detail is Detail.TIMEOUT


@pytest.mark.parametrize("kind", ["consumer", "library"])
async def test_a_link_whose_first_consumer_ended_while_the_next_one_joined_is_lost_at_once(kind: str) -> None:
    """A broker answers all the same, so that nothing else would report it."""
    link = KafkaLink([["alarms"]])
    if kind == "consumer":
        link.ended(NotConnected(Detail.MISSING_ADDRESS, "alarms: the topic was deleted and created again"))
    else:
        link.failed(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED), "alarms")
    link.mark_started()
    assert link.lost.done()
    assert link.lost.result().text.startswith("alarms: ")
