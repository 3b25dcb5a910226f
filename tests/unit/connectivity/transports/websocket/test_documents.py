"""Validation of connection documents for WebSocket listeners."""

from __future__ import annotations

from typing import Any

import pytest
import trustme

from connectivity.security.egress import EgressRules, enforce
from tests.support.file_schema import complaints, is_accepted
from tests.support.in_process.websocket_listener import key_of
from tests.support.table import each_row
from tests.support.validation import validate

OWN = trustme.CA().issue_cert("listener.acme.example")
CERTIFICATE = {"type": "client-cert", "cert": OWN.cert_chain_pems[0].bytes().decode(), "key": key_of(OWN)}
GOOD: dict[str, Any] = {
    "id": "listener",
    "connectionType": "websocket",
    "connectionStatus": "open",
    "uri": "ws://0.0.0.0:8765",
    "sources": [{"addresses": ["/twins"], "authorizationContext": ["lab:all"]}],
}
EVENTS = {"topics": ["_/_/things/twin/events"], "authorizationContext": ["lab:all"]}


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"uri": "ws://[::]:8765/"},
        {"uri": "wss://listener.acme.example:443", "credentials": CERTIFICATE},
        {"uri": "WSS://listener.acme.example:443", "credentials": CERTIFICATE},
        {"targets": [{"address": "/alarms/{{ thing:name }}", **EVENTS}]},
        {"specificConfig": {"maxPeers": "5", "idleTimeout": "1h", "origins": "*", "is-diversion-source": "true"}},
    ],
)
def test_a_good_document_has_no_problems(more: dict[str, Any]) -> None:
    assert validate(GOOD | more) == []
    assert complaints(GOOD | more) == []


BROKEN: list[tuple[dict[str, Any], str, str]] = [
    ({"uri": "http://0.0.0.0:8765"}, "uri", "one of the schemes ws, wss"),
    ({"uri": "ws://0.0.0.0:8765/twins"}, "uri", "without a path"),
    ({"uri": "ws://me:secret@0.0.0.0:8765"}, "uri", "peers log in with tokens"),
    ({"uri": "wss://0.0.0.0:8765"}, "credentials", "the certificate that the listener presents"),
    ({"uri": "wss://0.0.0.0:8765", "credentials": {"type": "client-cert"}}, "credentials.key", "the private key"),
    ({"credentials": CERTIFICATE}, "uri", "wss, because the connection has credentials"),
    ({"ca": CERTIFICATE["cert"]}, "uri", "wss"),
    ({"clientCount": 2}, "clientCount", "a listener has one client"),
    ({"targets": [{"address": "alarms", **EVENTS}]}, "targets[0].address", "a path such as /twins"),
    ({"specificConfig": {"maxPeers": "many"}}, "specificConfig.maxPeers", "a whole number"),
    ({"specificConfig": {"maxPeers": "1_0"}}, "specificConfig.maxPeers", "a whole number"),
    ({"specificConfig": {"maxPeersPerAddress": "\u0661"}}, "specificConfig.maxPeersPerAddress", "a whole number"),
    ({"specificConfig": {"maxAcceptsPerAddress": "1_0"}}, "specificConfig.maxAcceptsPerAddress", "a whole number"),
    ({"specificConfig": {"maxUnsettled": "1_0"}}, "specificConfig.maxUnsettled", "a whole number"),
    ({"specificConfig": {"maxFrame": "10B"}}, "specificConfig.maxFrame", "at least 1024"),
    ({"specificConfig": {"maxFrame": "4MiB/s"}}, "specificConfig.maxFrame", "a size such as"),
    ({"specificConfig": {"maxFrame": "\u0661\u0660KiB"}}, "specificConfig.maxFrame", "a size such as"),
    ({"specificConfig": {"tokens": "tablet"}}, "specificConfig.tokens", "SHA-256"),
    ({"specificConfig": {"maxPear": "1"}}, "specificConfig.maxPear", "maxPeers"),
]


@each_row(("more", "path", "message"), BROKEN)
def test_a_problem_names_its_path_and_the_expected_value(more: dict[str, Any], path: str, message: str) -> None:
    problems = [problem for problem in validate(GOOD | more) if problem.path == path]
    assert problems
    assert any(message in str(problem) for problem in problems), problems
    assert "secret" not in str(problems)


@pytest.mark.parametrize("more", [{}, {"credentials": CERTIFICATE}])
@pytest.mark.parametrize("uri", ["ws://127.0.0.1:8765/?x=1", "ws://127.0.0.1:port", "${env:NOWHERE}"])
def test_no_problem_of_certificates_is_reported_while_the_uri_is_invalid(uri: str, more: dict[str, Any]) -> None:
    assert {problem.path for problem in validate(GOOD | more | {"uri": uri})} == {"uri"}


@pytest.mark.parametrize("address", ["twins", "/twins?a=b", "/twins#top", "/two words", "/{{ thing:id }}"])
def test_a_sources_address_is_a_path(address: str) -> None:
    [problem] = validate(GOOD | {"sources": [{"addresses": [address], "authorizationContext": ["lab:all"]}]})
    assert problem.path == "sources[0].addresses[0]"


def test_the_schema_refuses_the_broken_documents_but_for_some_options() -> None:
    accepted = {path for more, path, _ in BROKEN if is_accepted(GOOD | more)}
    assert accepted == {"specificConfig.maxFrame", "specificConfig.tokens"}


def test_the_rules_for_hosts_do_not_apply_to_a_listener() -> None:
    broker = {**GOOD, "connectionType": "mqtt-5", "uri": "tcp://127.0.0.1:1883"}
    broker["sources"] = [{"addresses": ["a"], "qos": 1, "authorizationContext": ["lab:all"]}]
    with enforce(EgressRules(is_private_allowed=False, blocked=("127.0.0.1",))):
        assert validate(GOOD | {"uri": "ws://127.0.0.1:8765"}) == []
        assert [problem.path for problem in validate(broker)] == ["uri"]
