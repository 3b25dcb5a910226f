"""Decides from the opening request alone whether a client is admitted.

`accept_handshake` is pure. It checks in this order: the origin of a browser's page (403), the number of peers (503), the
number of query parameters (400), the token or certificate (401; 429 without a check), the path (404), the versions in the
query for wire protocols that negotiate (400). A refusal is an HTTP response with a plain text.

It also decides which headers a peer's messages get: those of its request that are used, in lower case, without secrets and
headers of the socket itself, and the listener's own, which no request can set.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from http import HTTPStatus
from typing import NamedTuple
from urllib.parse import parse_qsl, unquote

from connectivity.transports.listener.link import REPLY_TO
from mappings.errors import DecodeError
from mappings.mappers import Codec

USER = "websocket.user"
"""The header with the name of a peer's token."""
CERTIFICATE = "websocket.certificate"
"""The header with the common name in a peer's certificate, which may be the name of a token."""
FRAME = "websocket.frame"
TEXT, BINARY = "text", "binary"
ACCESS_TOKEN = "access_token"

_OWN = "websocket."
_DROPPED_HEADERS = frozenset(
    {
        "accept-encoding",
        "authorization",
        "connection",
        "content-length",
        "cookie",
        "host",
        "keep-alive",
        "proxy-authorization",
        "trailer",
        "transfer-encoding",
        "upgrade",
        REPLY_TO,
    }
)
"""Request headers that do not become headers of messages, such as those of the handshake."""

KEPT_HEADERS = frozenset(
    {"client-id", "content-type", "correlation-id", "device_id", "rsio-session", "traceparent", "tracestate"}
)
"""Request headers that the service itself reads."""

_BEARER = "bearer "
_MAX_PARAMETERS = 100


@dataclass(frozen=True, slots=True)
class Rules:
    """The requirements for clients of a listener.

    `tokens`: hash → name; `paths`: the addresses of sources and targets.
    """

    paths: frozenset[str]
    tokens: Mapping[str, str]
    origins: frozenset[str]
    max_peers: int
    accepts_certificate: bool = False
    """Whether a client certificate signed by a trusted authority is accepted instead of a token."""
    codecs: Mapping[str, Sequence[Codec]] = field(default_factory=dict)
    """Path → the codecs of the source at this path."""
    shortest_token: int = 0
    """Characters of a token at least; only hashes of tokens are known before."""
    headers: frozenset[str] = KEPT_HEADERS
    """The request headers that messages get; others would only take memory of each peer."""


class HandshakeRequest(NamedTuple):
    """An opening request: its GET target, its headers in order, and the name in its certificate, if any."""

    target: str
    headers: Iterable[tuple[str, str]]
    certified: str | None = None


class AcceptedHandshake(NamedTuple):
    """The client is admitted at this path, with these headers for each of its messages.

    `subprotocols` are those that the two sides may agree on; an agreement is optional.
    """

    path: str
    headers: Mapping[str, str]
    subprotocols: frozenset[str] = frozenset()


class RefusedHandshake(NamedTuple):
    """The client is refused with this status and text, after a delay in seconds."""

    status: HTTPStatus
    text: str
    is_wrong_token: bool = False
    delay: float = 0.0


def accept_handshake(
    asked: HandshakeRequest, rules: Rules, peers: int, *, is_guessing: bool = False
) -> AcceptedHandshake | RefusedHandshake:
    """Decide whether a request is admitted while there are `peers` peers.

    `is_guessing`: too many wrong tokens came from the client's address, so none is checked.
    """
    raw_path, _, query = decode_text(asked.target).partition("?")
    path = unquote(raw_path)
    headers: dict[str, str] = {}
    for name, raw in asked.headers:
        name, value = name.lower(), decode_text(raw)
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    origin = headers.get("origin")
    if origin is not None and "*" not in rules.origins and origin.lower() not in rules.origins:
        return RefusedHandshake(
            HTTPStatus.FORBIDDEN, "The listener does not allow this origin, expected one that `origins` lists."
        )
    if peers >= rules.max_peers:
        return RefusedHandshake(
            HTTPStatus.SERVICE_UNAVAILABLE, f"The listener has {peers} peers, which is its maximum. Try again later."
        )
    try:
        query_parameters = dict(parse_qsl(query, keep_blank_values=True, max_num_fields=_MAX_PARAMETERS))
    except ValueError:
        return RefusedHandshake(HTTPStatus.BAD_REQUEST, f"The query has more than {_MAX_PARAMETERS} parameters.")
    token = _token(headers.get("authorization"), query_parameters.get(ACCESS_TOKEN)) if rules.tokens else None
    user = _user_of(token, rules, is_guessing=is_guessing) if token else None
    if isinstance(user, RefusedHandshake):
        return user
    if user is None and asked.certified is None and (rules.tokens or rules.accepts_certificate):
        return RefusedHandshake(HTTPStatus.UNAUTHORIZED, _expected_credentials(rules))
    if path not in rules.paths:
        return RefusedHandshake(HTTPStatus.NOT_FOUND, "The path is unknown, expected an address of a source or target.")
    message_headers = _message_headers(headers, rules, user, asked.certified)
    codecs = rules.codecs.get(path, ())
    try:
        _negotiate(codecs, query_parameters, message_headers)
    except DecodeError as error:
        return RefusedHandshake(HTTPStatus.BAD_REQUEST, error.fault.message)
    names = frozenset(codec.subprotocol for codec in codecs if codec.subprotocol is not None)
    return AcceptedHandshake(path, message_headers, names)


def _user_of(token: str, rules: Rules, *, is_guessing: bool) -> str | RefusedHandshake:
    """Return the name of a token, or why it is refused."""
    if is_guessing:
        return RefusedHandshake(
            HTTPStatus.TOO_MANY_REQUESTS, "Your address has sent too many wrong tokens. Try again later."
        )
    if len(token) < rules.shortest_token:
        return RefusedHandshake(
            HTTPStatus.UNAUTHORIZED,
            f"The token has {len(token)} characters, expected at least {rules.shortest_token}, because the listener "
            "does not listen on a loopback address.",
            is_wrong_token=True,
        )
    user = rules.tokens.get(sha256(token.encode()).hexdigest())
    if user is None:
        return RefusedHandshake(HTTPStatus.UNAUTHORIZED, _expected_credentials(rules), is_wrong_token=True)
    return user


def _message_headers(
    headers: Mapping[str, str], rules: Rules, user: str | None, certified: str | None
) -> dict[str, str]:
    """Return the headers of a peer's messages: its request's, and the names of token and certificate."""
    found = {
        name: value
        for name, value in headers.items()
        if name in rules.headers and name not in _DROPPED_HEADERS and not name.startswith((_OWN, "sec-")) and value
    }
    if user is not None:
        found[USER] = user
    if certified is not None:
        found[CERTIFICATE] = certified
    return found


def _negotiate(codecs: Iterable[Codec], query: Mapping[str, str], message_headers: dict[str, str]) -> None:
    """Set the headers with the versions that codecs negotiate. Raises DecodeError."""
    for codec in codecs:
        if codec.negotiated is not None:
            message_headers.pop(codec.negotiated, None)
            if (version := codec.negotiate(query)) is not None:
                message_headers[codec.negotiated] = version


def decode_text(raw: str) -> str:
    """Decode a target or a header's value, whose non-ASCII bytes the parser keeps as surrogate escapes."""
    return raw if raw.isascii() else raw.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _token(authorization: str | None, in_query: str | None) -> str | None:
    """Return the presented token; that of the header takes precedence."""
    if authorization is not None and authorization[: len(_BEARER)].lower() == _BEARER:
        return authorization[len(_BEARER) :].strip()
    return in_query


def _expected_credentials(rules: Rules) -> str:
    ways = ["a client certificate that the listener trusts"] if rules.accepts_certificate else []
    ways += [f"`Authorization: Bearer …` or `?{ACCESS_TOKEN}=…` with a token of the listener"] if rules.tokens else []
    return f"Expected {' or '.join(ways)}."
