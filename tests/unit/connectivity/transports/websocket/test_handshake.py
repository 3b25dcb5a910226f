"""Which clients a listener admits, and with which headers, decided from the request alone."""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256
from http import HTTPStatus
from typing import Any

import pytest
from pydantic import ValidationError

from connectivity.transports.websocket.handshake import (
    AcceptedHandshake,
    HandshakeRequest,
    RefusedHandshake,
    Rules,
    accept_handshake,
)
from connectivity.transports.websocket.options import Options, read_origins, read_tokens
from connectivity.transports.websocket.server import rules_of
from mappings.mappers import load_codec
from tests.support.in_process.websocket_listener import listener_connection
from tests.support.table import each_row

TOKENS = {sha256(b"s3cret-of-tablet").hexdigest(): "tablet-7"}
OPEN = Rules(frozenset({"/twins", "/Höfe"}), {}, frozenset(), max_peers=2, codecs={"/twins": (load_codec("Streamr"),)})
GUARDED = replace(OPEN, tokens=TOKENS)
BEARER = ("Authorization", "Bearer s3cret-of-tablet")


def decided(
    target: str = "/twins", *headers: tuple[str, str], rules: Rules = OPEN, **more: Any
) -> AcceptedHandshake | RefusedHandshake:
    asked = HandshakeRequest(target, headers, more.get("certified"))
    return accept_handshake(asked, rules, more.get("peers", 0), is_guessing=more.get("is_guessing", False))


def status(*arguments: Any, **more: Any) -> int:
    """Return the status of the handshake, 101 if the client is admitted."""
    found = decided(*arguments, **more)
    return 101 if isinstance(found, AcceptedHandshake) else found.status.value


def headers(*arguments: Any, **more: Any) -> dict[str, str]:
    found = decided(*arguments, **more)
    assert isinstance(found, AcceptedHandshake)
    return dict(found.headers)


# ── the path ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("/twins", 101),
        ("/twins?a=b", 101),
        ("/H%C3%B6fe", 101),
        ("/twins/", 404),
        ("/", 404),
        ("/Twins", 404),
        ("http://listener/twins", 404),
    ],
)
def test_a_path_is_one_of_a_source_or_target(target: str, expected: int) -> None:
    assert status(target) == expected


@each_row(
    ("target", "rules", "expected"),
    [
        ("/twins?access_token=\udcff", GUARDED, HTTPStatus.UNAUTHORIZED),
        ("/twins?controlLayerVersion=\udcff&messageLayerVersion=28", OPEN, HTTPStatus.BAD_REQUEST),
        ("/\udcff", OPEN, HTTPStatus.NOT_FOUND),
    ],
)
def test_bytes_that_no_request_line_has_are_refused_like_others(
    target: str, rules: Rules, expected: HTTPStatus
) -> None:
    """The parser keeps them as surrogate escapes, which can be neither hashed nor sent."""
    found = decided(target, rules=rules)
    assert isinstance(found, RefusedHandshake)
    assert found.status is expected
    assert found.text.encode()


def test_a_query_of_too_many_members_is_refused() -> None:
    assert status("/twins?" + "&".join(["a=b"] * 200)) == 400


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("", None),
        ("controlLayerVersion=0&messageLayerVersion=28", "28"),
        ("controlLayerVersion=0&messageLayerVersion=29", "29"),
        ("controlLayerVersion=0", None),
        ("version=31", None),
    ],
)
def test_supported_versions_of_the_streamr_protocol_become_a_header(query: str, expected: str | None) -> None:
    assert headers(f"/twins?{query}").get("streamr-version") == expected


@pytest.mark.parametrize(
    "query",
    [
        "controlLayerVersion=1&messageLayerVersion=29",
        "controlLayerVersion=0&messageLayerVersion=30",
        "controlLayerVersion=0&messageLayerVersion=x",
    ],
)
def test_unsupported_versions_are_refused_and_the_supported_ones_named(query: str) -> None:
    found = decided(f"/twins?{query}")
    assert isinstance(found, RefusedHandshake)
    assert found.status is HTTPStatus.BAD_REQUEST
    assert "expected 0 and 28, or 0 and 29" in found.text


# ── who ───────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_without_tokens_and_certificates_every_client_is_admitted_without_a_name() -> None:
    assert "websocket.user" not in headers()
    assert "websocket.user" not in headers("/twins?access_token=anything", BEARER)


@pytest.mark.parametrize(
    ("target", "sent"),
    [
        ("/twins", [BEARER]),
        ("/twins", [("authorization", "bearer   s3cret-of-tablet ")]),
        ("/twins?access_token=s3cret-of-tablet", []),
        ("/twins?a=b&access_token=s3cret%2Dof%2Dtablet", []),
    ],
)
def test_a_client_with_a_token_has_its_name(target: str, sent: list[tuple[str, str]]) -> None:
    found = headers(target, *sent, rules=GUARDED)
    assert found["websocket.user"] == "tablet-7"
    assert "s3cret" not in str(found)


@each_row(
    ("target", "sent"),
    [
        ("/twins", []),
        ("/nowhere", []),
        ("/twins", [("Authorization", "Bearer wrong")]),
        ("/twins", [("Authorization", "Basic s3cret-of-tablet")]),
        ("/twins", [("Authorization", "Bearer \udcff")]),
        ("/twins", [BEARER, BEARER]),
        ("/twins?access_token=", []),
        ("/twins?access_token=wrong", []),
        ("/twins?access_token=%FF", []),
        (f"/twins?access_token={next(iter(TOKENS))}", []),
    ],
)
def test_a_client_without_a_known_token_is_refused_and_does_not_learn_the_paths(
    target: str, sent: list[tuple[str, str]]
) -> None:
    found = decided(target, *sent, rules=GUARDED)
    assert isinstance(found, RefusedHandshake)
    assert found.status is HTTPStatus.UNAUTHORIZED
    assert "Authorization: Bearer" in found.text


def names(*arguments: Any, **more: Any) -> tuple[str | None, str | None]:
    """The name of the token and that of the certificate."""
    found = headers(*arguments, **more)
    return found.get("websocket.user"), found.get("websocket.certificate")


def test_a_certificate_admits_a_client_where_it_is_accepted_and_gives_its_name() -> None:
    wanting = replace(OPEN, accepts_certificate=True)
    assert status(rules=wanting) == 401
    assert names(rules=wanting, certified="device-9") == (None, "device-9")
    both = replace(wanting, tokens=TOKENS)
    assert names("/twins", BEARER, rules=both, certified="device-9") == ("tablet-7", "device-9")
    assert names(rules=both, certified="device-9") == (None, "device-9")


def test_a_certificate_with_the_name_of_a_token_is_not_the_user_of_the_token() -> None:
    both = replace(GUARDED, accepts_certificate=True)
    assert names(rules=both, certified="tablet-7") == (None, "tablet-7")
    forged = (("websocket.user", "tablet-7"), ("Websocket.Certificate", "tablet-7"))
    assert names("/twins", *forged, rules=both, certified="device-9") == (None, "device-9")


def test_a_wrong_token_is_refused_with_a_valid_certificate_too() -> None:
    both = replace(GUARDED, accepts_certificate=True)
    for sent in (("Authorization", "Bearer wrong"), None):
        target = "/twins" if sent else "/twins?access_token=wrong"
        found = decided(target, *([sent] if sent else []), rules=both, certified="device-9")
        assert isinstance(found, RefusedHandshake)
        assert (found.status, found.is_wrong_token) == (HTTPStatus.UNAUTHORIZED, True)


def test_a_token_that_can_be_guessed_is_refused_where_others_reach_the_listener() -> None:
    short = replace(GUARDED, tokens={sha256(b"x").hexdigest(): "tablet-7"})
    assert status("/twins?access_token=x", rules=short) == 101
    found = decided("/twins?access_token=x", rules=replace(short, shortest_token=16))
    assert isinstance(found, RefusedHandshake)
    assert (found.status, found.is_wrong_token) == (HTTPStatus.UNAUTHORIZED, True)
    assert (
        found.text
        == "The token has 1 characters, expected at least 16, because the listener does not listen on a loopback address."
    )
    assert status("/twins", BEARER, rules=replace(GUARDED, shortest_token=16)) == 101


@pytest.mark.parametrize(
    ("host", "expected"), [("127.0.0.1", 0), ("localhost", 0), ("[::1]", 0), ("0.0.0.0", 16), ("[::]", 16)]
)
def test_only_a_listener_at_loopback_takes_short_tokens(host: str, expected: int) -> None:
    connection = listener_connection(8765, uri=f"ws://{host}:8765")
    assert rules_of(connection, Options()).shortest_token == expected


def test_the_header_with_the_thing_of_a_peer_is_kept_although_the_document_does_not_name_it() -> None:
    rules = rules_of(listener_connection(8765), Options())
    assert headers("/twins", ("Device_Id", "acme.site:lamp-7"), ("X-Other", "7"), rules=rules) == {
        "device_id": "acme.site:lamp-7"
    }


def test_no_token_is_checked_while_its_address_is_guessing() -> None:
    for target, sent in (("/twins", [BEARER]), ("/twins?access_token=wrong", [])):
        found = decided(target, *sent, rules=GUARDED, is_guessing=True)
        assert isinstance(found, RefusedHandshake)
        assert (found.status, found.is_wrong_token) == (HTTPStatus.TOO_MANY_REQUESTS, False)
    both = replace(GUARDED, accepts_certificate=True)
    assert status("/twins", rules=both, certified="device-9", is_guessing=True) == 101
    assert status("/twins", rules=GUARDED, is_guessing=True) == 401
    assert status("/twins", BEARER, rules=OPEN, is_guessing=True) == 101


def test_the_number_of_peers_is_limited() -> None:
    assert (status(peers=1), status(peers=2)) == (101, 503)


@each_row(
    ("origins", "origin", "expected"),
    [
        ("", None, 101),
        ("", "https://evil.example", 403),
        ("", "null", 403),
        ("https://desk.acme.example", "https://desk.acme.example", 101),
        ("https://desk.acme.example", "https://DESK.acme.example", 101),
        ("https://desk.acme.example", "http://desk.acme.example", 403),
        ("https://desk.acme.example", "https://desk.acme.example.evil.example", 403),
        ("*", "https://anybody.example", 101),
    ],
)
def test_a_web_page_may_connect_only_where_its_origin_is_named(origins: str, origin: str | None, expected: int) -> None:
    sent = [] if origin is None else [("Origin", origin)]
    assert status("/twins", *sent, rules=replace(OPEN, origins=read_origins(origins))) == expected


# ── headers ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_headers_of_the_request_are_those_of_the_messages_without_secrets_and_without_the_sockets_own() -> None:
    found = headers(
        "/twins",
        ("Host", "listener:8765"),
        ("Upgrade", "websocket"),
        ("Connection", "Upgrade"),
        ("Sec-WebSocket-Key", "AAAA"),
        ("Sec-Fetch-Mode", "websocket"),
        ("Cookie", "session=1"),
        ("Proxy-Authorization", "Basic x"),
        BEARER,
        ("User-Agent", "lamp/7"),
        ("X-Line", "north"),
        ("X-Line", "south"),
        ("X-Empty", ""),
        ("X-Place", "H\udcc3\udcb6fe"),
        ("X-Unused", "x" * 8000),
        rules=replace(
            OPEN, headers=frozenset({"user-agent", "x-line", "x-empty", "x-place", "cookie", "host", "upgrade"})
        ),
    )
    assert found == {"user-agent": "lamp/7", "x-line": "north, south", "x-place": "Höfe"}


def test_no_request_can_set_the_headers_of_the_listener() -> None:
    forged = [
        ("Reply-To", "peer-of-somebody-else"),
        ("WebSocket.User", "integration:admin"),
        ("websocket.frame", "binary"),
        ("Streamr-Version", "29"),
    ]
    assert headers("/twins", *forged) == {}


# ── options ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_tokens_are_read_as_names_with_hashes() -> None:
    one, two = "a" * 64, "B" * 64
    assert read_tokens(f"tablet-7={one}, integration:desk={two}\n") == {
        one: "tablet-7",
        two.lower(): "integration:desk",
    }
    assert read_tokens("") == {}


@each_row(
    ("option", "value", "expected"),
    [
        ("tokens", "tablet=secret", "name=<SHA-256"),
        ("tokens", f"a b={'0' * 64}", "name=<SHA-256"),
        ("tokens", f"a={'0' * 64},b={'0' * 64}", "each token once"),
        ("origins", "desk.acme.example", "origins such as"),
        ("origins", "https://desk.acme.example/page", "origins such as"),
        ("maxPeers", "0", "greater than or equal"),
        ("maxFrame", "1", "greater than or equal"),
        ("maxFrame", "much", "a size such as"),
        ("pingInterval", "0s", "above 0"),
        ("pingInterval", "soon", "a duration"),
        ("compression", "gzip", "none"),
        ("maxPears", "1", "not permitted"),
    ],
)
def test_an_invalid_option_reports_the_expected_value(option: str, value: str, expected: str) -> None:
    with pytest.raises(ValidationError) as refused:
        Options.model_validate({option: value})
    assert expected in str(refused.value)
