"""The options of MQTT connections: reading texts, and the errors for invalid ones."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from connectivity.transports.mqtt.options import Options, read_duration
from tests.support.acceptance import accepted, accepts
from tests.support.cpu_budget import at_most
from tests.support.dice import examples
from tests.support.table import each_row


@each_row(
    ("text", "seconds"),
    [
        ("30s", 30),
        ("2m", 120),
        ("1.5h", 5400),
        ("1 d", 86400),
        ("500ms", 0.5),
        ("500", 0.5),
        ("10 milliseconds", 0.01),
        ("1 millis", 0.001),
        ("2 seconds", 2),
        ("1 minute", 60),
        ("3000000 micros", 3),
        (" 7 s ", 7),
    ],
)
def test_a_duration_is_a_number_with_a_unit(text: str, seconds: float) -> None:
    assert read_duration(text) == timedelta(seconds=seconds)


@each_row("text", ["", "s", "-1s", "1 fortnight", "1s2", "1,5s", "inf", "1e9s", "999999999999999d"])
def test_an_invalid_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="duration"):
        read_duration(text)


NUMBERS = st.integers(-9, 10**9).map(str) | st.decimals(0, 10**6, places=2).map(str)
WRITTEN = st.builds(str.__add__, NUMBERS, st.sampled_from(["", "s", " ms", " millis", " seconds", "micros", "x"]))


@accepts(at_least=1)
@settings(max_examples=examples(250), deadline=None)
@given(st.text() | WRITTEN)
def test_no_text_is_more_than_a_wrong_duration(text: str) -> None:
    try:
        found = read_duration(text)
    except ValueError:
        return
    accepted()
    assert isinstance(found, timedelta)
    assert found >= timedelta(0)


def test_a_bare_number_as_keep_alive_is_milliseconds_and_so_no_keep_alive() -> None:
    assert int(Options.model_validate({"keepAlive": "30"}).keep_alive.total_seconds()) == 0


def test_the_delay_before_redelivery_is_at_least_a_second() -> None:
    options = Options.model_validate({"reconnectForRedeliveryDelay": "10ms"})
    assert options.reconnect_for_redelivery_delay == timedelta(seconds=1)


def test_the_defaults() -> None:
    options = Options()
    assert options.keep_alive == timedelta(seconds=60)
    assert options.reconnect_for_redelivery_delay == timedelta(seconds=10)
    assert (options.client_id, options.publisher_id, options.last_will_topic) == (None, None, None)
    switches = (options.clean_session, options.reconnect_for_redelivery, options.separate_publisher_client)
    assert switches == (False, False, False)
    assert (options.last_will_qos, options.last_will_retain, options.last_will_message) == (0, False, "")


@pytest.mark.parametrize("text", ["true", "yes", "on"])
def test_a_yes_in_each_spelling(text: str) -> None:
    assert Options.model_validate({"cleanSession": text}).clean_session


@each_row(
    ("name", "value"),
    [
        ("cleanSession", "perhaps"),
        ("keepAlive", "65536s"),
        ("keepAlive", "-1s"),
        ("lastWillQos", "3"),
        ("lastWillTopic", "status/#"),
        ("lastWillTopic", ""),
        ("lastWillMessage", "x" * 65536),
        ("clientId", "a\x00b"),
        ("keepalive", "30s"),
    ],
)
def test_a_value_that_cannot_be(name: str, value: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Options.model_validate({name: value})
    assert [error["loc"] for error in caught.value.errors()] == [(name,)]


def test_a_number_before_much_white_space_is_refused_at_once() -> None:
    with at_most(1), pytest.raises(ValueError, match="a duration such as"):
        read_duration("5" + " " * 1_000_000 + "!")
