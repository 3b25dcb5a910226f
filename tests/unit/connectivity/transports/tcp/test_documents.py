"""Validation of connection documents for TCP listeners."""

from __future__ import annotations

from typing import Any

import pytest
import trustme

from connectivity.security.egress import EgressRules, enforce
from tests.support.file_schema import complaints, is_accepted
from tests.support.in_process.tcp_service import document
from tests.support.in_process.websocket_listener import key_of
from tests.support.table import each_row
from tests.support.validation import validate

OWN = trustme.CA().issue_cert("listener.acme.example")
CERTIFICATE = {"type": "client-cert", "cert": OWN.cert_chain_pems[0].bytes().decode(), "key": key_of(OWN)}
GOOD = document(8766)
SOURCE = GOOD["sources"][0]


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"uri": "tcp://[::]:8766/"},
        {"sources": [{**SOURCE, "replyTarget": {"address": "{{header:reply-to}}"}}]},
        {"uri": "ssl://listener.acme.example:443", "credentials": CERTIFICATE},
        {"uri": "tls://0.0.0.0:443", "credentials": CERTIFICATE, "ca": CERTIFICATE["cert"]},
        {"sources": [{**SOURCE, "payloadMapping": ["ReactiveStreamsIO"]}], "specificConfig": {"maxPeers": "5"}},
    ],
)
def test_a_good_document_has_no_problems(more: dict[str, Any]) -> None:
    assert validate(GOOD | more) == []
    assert complaints(GOOD | more) == []


BROKEN: list[tuple[dict[str, Any], str, str]] = [
    ({"uri": "http://0.0.0.0:8766"}, "uri", "one of the schemes tcp, ssl, tls"),
    ({"uri": "tcp://0.0.0.0:8766/rsio"}, "uri", "without a path"),
    ({"uri": "tcp://me:secret@0.0.0.0:8766"}, "uri", "peers present certificates"),
    ({"uri": "ssl://0.0.0.0:8766"}, "credentials", "the certificate that the listener presents"),
    ({"credentials": CERTIFICATE}, "uri", "ssl or tls, because the connection has credentials"),
    ({"ca": CERTIFICATE["cert"]}, "uri", "ssl or tls"),
    ({"clientCount": 2}, "clientCount", "a listener has one client"),
    ({"sources": [SOURCE, SOURCE]}, "sources", "found 2 sources, expected one"),
    ({"sources": []}, "sources", "expected one"),
    ({"sources": [{**SOURCE, "addresses": ["a", "b"]}]}, "sources[0].addresses", "expected one address"),
    ({"sources": [{**SOURCE, "addresses": ["{{ thing:id }}"]}]}, "sources[0].addresses[0]", "without placeholders"),
    (
        {"sources": [{**SOURCE, "payloadMapping": ["rsio", "rsio"]}]},
        "sources[0].payloadMapping",
        "one payload mapping, since",
    ),
    (
        {"sources": [{**SOURCE, "payloadMapping": []}]},
        "sources[0].payloadMapping",
        "so the default Ditto is used, expected a",
    ),
    ({"sources": [{**SOURCE, "payloadMapping": ["Ditto"]}]}, "sources[0].payloadMapping[0]", "ReactiveStreamsIO"),
    ({"sources": [{**SOURCE, "payloadMapping": ["Streamr"]}]}, "sources[0].payloadMapping[0]", "byte stream"),
    (
        {"sources": [{**SOURCE, "replyTarget": {"address": "elsewhere"}}]},
        "sources[0].replyTarget.address",
        "{{ header:reply-to }}: replies can only go to the peer",
    ),
    (
        {"targets": [{"address": "a", "topics": ["_/_/things/twin/events"], "authorizationContext": ["lab:all"]}]},
        "targets",
        "no targets, because a TCP peer receives only what it requests",
    ),
    ({"specificConfig": {"maxPear": "1"}}, "specificConfig.maxPear", "maxPeers"),
    ({"specificConfig": {"maxUnsettled": "1_0"}}, "specificConfig.maxUnsettled", "a whole number"),
]


@each_row(("more", "path", "message"), BROKEN)
def test_a_problem_names_its_path_and_the_expected_value(more: dict[str, Any], path: str, message: str) -> None:
    problems = [problem for problem in validate(GOOD | more) if problem.path == path]
    assert problems
    assert any(message in str(problem) for problem in problems), problems
    assert "secret" not in str(problems)


def test_the_schema_refuses_the_broken_documents_but_for_mappers_that_read_no_stream() -> None:
    assert {path for more, path, _ in BROKEN if is_accepted(GOOD | more)} == {"sources[0].payloadMapping[0]"}


def test_the_rules_for_hosts_do_not_apply_to_a_listener() -> None:
    with enforce(EgressRules(is_private_allowed=False, blocked=("127.0.0.1",))):
        assert validate(GOOD) == []
