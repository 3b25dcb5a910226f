"""The address of a broker."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from connectivity.security.uri import mask_uri, parse_tunnel_uri, parse_uri
from tests.support.acceptance import accepted, accepts
from tests.support.dice import examples
from tests.support.table import each_row


@each_row(
    ("text", "username", "password"),
    [
        ("amqps://bridge%40depot7:s3cr%3At@mq.example:5671/fleet", "bridge@depot7", "s3cr:t"),
        ("tcp://u:a:b@h:1", "u", "a:b"),
        ("tcp://u%3Aa:b@h:1", "u", "a:b"),
        ("tcp://u:@h:1", "u", ""),
        ("tcp://:p@h:1", "", "p"),
        ("tcp://token@h:1", None, None),
        ("tcp://h:1", None, None),
        ("tcp://u:a%2Bb+c@h:1", "u", "a+b+c"),
    ],
)
def test_1_2_user_information_is_decoded_then_split_at_the_first_colon(
    text: str, username: str | None, password: str | None
) -> None:
    uri = parse_uri(text)
    assert uri.username == username
    assert (None if uri.password is None else uri.password.get_secret_value()) == password


@pytest.mark.parametrize(
    ("text", "host", "port", "path", "secure"),
    [
        ("tcp://broker:1883", "broker", 1883, "", False),
        ("ssl://Broker.Example:8883/x", "broker.example", 8883, "/x", True),
        ("amqps://[fe80::1]:5671/%2F", "fe80::1", 5671, "/%2F", True),
        ("AMQP://h:1/", "h", 1, "/", False),
    ],
)
def test_1_2_the_parts_of_an_address(text: str, host: str, port: int, path: str, secure: bool) -> None:
    uri = parse_uri(text)
    assert (uri.host, uri.port, uri.path, uri.is_secure) == (host, port, path, secure)


@each_row(
    "text",
    [
        *("", "h:1", "tcp:h:1", "tcp://", "tcp://h", "tcp://h:", "tcp://h:0", "tcp://h:99999", "tcp://h:x", "tcp://:1"),
        *(
            "tcp://h:1?a=b",
            "tcp://h:1/#a",
            "tcp://u:p@x@h:1",
            "tcp://u:p w@h:1",
            "tcp://h:1\n",
            "tcp://[::1:1",
            "1tcp://h:1",
        ),
    ],
)
def test_1_2_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"port|scheme|host|query|percent-encoded"):
        parse_uri(text)


@each_row(
    ("text", "masked"),
    [
        ("amqp://u:geheim@h:1/v", "amqp://u:*****@h:1/v"),
        ("amqp://u%3Age:heim@h:1", "amqp://u%3A*****@h:1"),
        ("amqp://geheim@h:1", "amqp://*****@h:1"),
        ("amqp://h:1", "amqp://h:1"),
        ("amqp://[::1]:1/v", "amqp://[::1]:1/v"),
        ("amqp://u:geheim", "amqp://u:*****"),
        ("amqp://u:ge/heim@h:1", "amqp://u:*****@h:1"),
        ("amqp://u:ge@heim@h:1", "amqp://u:*****@h:1"),
        ("u:geheim@h:1", "u:*****@h:1"),
        ("amqp://h:1?password=geheim", "amqp://h:1?*****"),
    ],
)
def test_1_2_a_password_is_masked_also_where_an_address_cannot_be_parsed(text: str, masked: str) -> None:
    assert mask_uri(text) == masked


@accepts(at_least=1)
@settings(max_examples=examples(500), deadline=None)
@given(st.text(), st.text() | st.from_regex(r"[a-z][a-z0-9.]{0,9}", fullmatch=True))
def test_any_uri_is_parsed_or_refused(start: str, rest: str) -> None:
    for text in (start, f"tcp://{rest}", f"tcp://{start}@{rest}:1"):
        mask_uri(text)
        try:
            port = parse_uri(text).port
        except ValueError:
            continue
        accepted()
        assert port > 0


@given(st.text(st.characters(codec="utf-8", exclude_characters="/?#@:"), min_size=4))
def test_no_password_is_left_in_a_masked_address(password: str) -> None:
    assert mask_uri(f"tcp://u:{password}@h:1") == "tcp://u:*****@h:1"


@pytest.mark.parametrize("text", ["tcp://h:22", "ssh://u:p@h:22", "ssh://h", "ssh://h:22/x"])
def test_1_4_a_tunnel_has_host_and_port_alone(text: str) -> None:
    assert parse_tunnel_uri("ssh://h:22") == ("h", 22)
    with pytest.raises(ValueError, match="port"):
        parse_tunnel_uri(text)
