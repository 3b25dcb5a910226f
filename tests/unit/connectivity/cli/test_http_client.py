"""Requests to a running service: its address, the token, and the error when there is no response."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import pytest

from connectivity.cli import http_client
from connectivity.cli.http_client import (
    BadAddress,
    NotAllowed,
    RequestFailed,
    ServiceClient,
    ServiceRefused,
    ServiceUnreachable,
    check_token,
    parse_service_address,
    reachable,
    read_token,
)
from tests.support.api.canned_server import HTML, SLOW, Canned, Reply, canned, fault
from tests.support.brokers import free_port
from tests.support.table import each_row

LIST = "GET /api/2/connections"
TOKEN = "t0ken-nobody-else-has"
OK = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"


def service(server: Canned, seconds: float = 30.0) -> ServiceClient:
    return ServiceClient(parse_service_address(server.url), TOKEN, seconds=seconds)


def test_a_question_carries_token_and_body_and_the_answer_its_tag() -> None:
    put = "PUT /api/2/connections/a:b%2Fc?x=1+2"
    with canned({put: Reply({"id": "ä"}, 201, {"ETag": '"rev:3"'})}) as server:
        answer = service(server).ask(
            "PUT", "connections", "a:b/c", query={"x": "1 2", "y": None}, body={"id": "ä"}, headers={"if-match": "*"}
        )
    assert (answer.status, answer.document, answer.tag) == (201, {"id": "ä"}, '"rev:3"')
    (asked,) = server.requests
    assert asked.document == {"id": "ä"}
    assert asked.headers["authorization"] == f"Bearer {TOKEN}"
    assert (asked.headers["if-match"], asked.headers["content-type"]) == ("*", "application/json")


def test_an_answer_without_a_body_has_no_document() -> None:
    with canned({"DELETE /api/2/connections/a": Reply(status=204)}) as server:
        assert service(server).ask("DELETE", "connections", "a").document is None


ODD = {
    "another server's page": (HTML, "a body that is not JSON"),
    "another server's error": (Reply(b"", 502, body=b"<h1>Bad gateway</h1>", content_type="text/html"), "status 502"),
    "a redirect": (Reply(status=302, headers={"location": "http://127.0.0.1:9/"}), "status 302"),
    "another API's error": (
        Reply({"detail": "no"}, 404),
        "status 404 with an error that does not come from this service",
    ),
    "an error that is a list": (Reply([1], 500), "status 500"),
    "JSON that is cut": (Reply(body=b'[{"id": "a"'), "a body that is not JSON"),
    "JSON without end": (Reply(body=b"[" * 200_000), "a body that is not JSON"),
    "bytes that are no text": (Reply(body=b"\xff\xfe\x00"), "a body that is not JSON"),
    "a body that is cut": (Reply(raw=OK + b"content-length: 100\r\n\r\n[]"), "incomplete"),
    "a chunk that is cut": (Reply(raw=OK + b"transfer-encoding: chunked\r\n\r\n5\r\n[]"), "incomplete"),
    "another protocol": (Reply(raw=b"SSH-2.0-OpenSSH_9.2p1\r\n"), "not HTTP"),
    "binary": (Reply(raw=bytes(range(256)) * 40), "not HTTP"),
    "a line without end": (Reply(raw=b"HTTP/1.1 200 " + b"x" * 100_000), "not HTTP"),
    "nothing": (Reply(raw=b""), "not HTTP, or incomplete"),
}


@each_row(("says", "reason"), ODD.values(), ids=ODD)
def test_an_unexpected_response_raises_an_error_with_the_reason(says: Reply, reason: str) -> None:
    with canned({LIST: says}) as server, pytest.raises(ServiceUnreachable) as found:
        service(server).get("connections")
    assert reason in str(found.value)
    assert server.url in str(found.value)
    assert TOKEN not in str(found.value)


@pytest.mark.parametrize("start", [b"", b"HTTP/1.1 200 OK\r\n", OK + b"\r\n[1, "], ids=["silent", "head", "body"])
def test_an_answer_that_does_not_end_is_not_waited_for(start: bytes) -> None:
    with (
        canned({LIST: Reply(raw=start, status=SLOW)}) as server,
        pytest.raises(ServiceUnreachable, match="no complete response"),
    ):
        service(server, 0.3).get("connections")


def test_an_answer_that_trickles_is_not_waited_for() -> None:
    """Each byte comes soon after the last, so that no single wait is long."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        place = parse_service_address(f"http://127.0.0.1:{listening.getsockname()[1]}")
        sent: list[int] = []
        over = threading.Event()

        def send_slowly() -> None:
            client, _ = listening.accept()
            with client:
                try:
                    while not over.wait(0.02):
                        client.sendall(b"x" if sent else OK + b"x-a: ")
                        sent.append(1)
                except OSError:
                    return

        dripping = threading.Thread(target=send_slowly)
        dripping.start()
        with pytest.raises(ServiceUnreachable, match="no complete response in time"):
            ServiceClient(place, seconds=0.5).get("connections")
        over.set()
        dripping.join(30)
        assert (dripping.is_alive(), len(sent) > 1) == (False, True)


def test_a_huge_answer_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_client, "MAX_RESPONSE_BYTES", 1000)
    with (
        canned({LIST: Reply(body=b" " * 2_000_000)}) as server,
        pytest.raises(ServiceUnreachable, match="more than 1000 bytes"),
    ):
        service(server).get("connections")


def test_an_unreachable_service_raises_an_error_with_the_address() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(ServiceUnreachable, match="connection refused; start the service, or fix --url") as found:
        ServiceClient(parse_service_address(url)).get("connections")
    assert url in str(found.value)
    for name in ("nowhere.invalid", "api..example"):
        with pytest.raises(ServiceUnreachable, match="unknown host"):
            ServiceClient(parse_service_address(f"http://{name}")).get("connections")


def test_a_server_without_tls_is_reported_from_one_with() -> None:
    with canned({}) as server, pytest.raises(ServiceUnreachable, match="does not use TLS"):
        ServiceClient(parse_service_address(server.url.replace("http", "https"))).get("connections")


REFUSED: dict[int, tuple[type[RequestFailed], int, str]] = {
    401: (NotAllowed, 4, "Use another token or address"),
    403: (NotAllowed, 4, "Use another token or address"),
    404: (ServiceRefused, 1, "a:b: why"),
    409: (ServiceRefused, 1, "a:b: why"),
    412: (ServiceRefused, 1, "a:b: why"),
    429: (ServiceRefused, 1, "a:b: why"),
    503: (ServiceRefused, 1, "a:b: why"),
}


@pytest.mark.parametrize("status", REFUSED)
def test_a_refusal_is_reported_with_the_message_of_the_service(status: int) -> None:
    kind, code, text = REFUSED[status]
    with canned({LIST: fault(status, "a:b", "why")}) as server, pytest.raises(kind) as found:
        service(server).get("connections")
    assert (found.value.exit_code, text in str(found.value), "why" in str(found.value)) == (code, True, True)


def test_the_problems_of_a_document_are_reported_one_a_line() -> None:
    problems = [{"path": "clientCount", "found": "0", "expected": "at least 1", "hint": None}, 7]
    with (
        canned({LIST: fault(400, "a:b", "why", description="clientCount: …", problems=problems)}) as server,
        pytest.raises(ServiceRefused) as found,
    ):
        service(server).get("connections")
    assert str(found.value) == "a:b: why\n  clientCount: found 0, expected at least 1"


def test_a_hint_of_the_service_is_reported() -> None:
    with (
        canned({LIST: fault(400, "a:b", "why", description="Mend it.")}) as server,
        pytest.raises(ServiceRefused, match=r"^a:b: why Mend it[.]$"),
    ):
        service(server).get("connections")


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://127.0.0.1:8080", "http://127.0.0.1:8080"),
        ("http://[::1]:8080/", "http://[::1]:8080"),
        ("https://ops.acme.example", "https://ops.acme.example:443"),
        ("http://gate/fleet/", "http://gate:80/fleet"),
    ],
)
def test_an_address_is_read(url: str, shown: str) -> None:
    assert parse_service_address(url).display_url == shown


@each_row(
    "url",
    [
        "",
        "localhost:8080",
        "ftp://h",
        "http://",
        "http://h:x",
        "http://h:99999",
        "http://h?token=x",
        "http://h#x",
        "http://h\nh",
        "http://[::1",
        f"http://me:{TOKEN}@h",
    ],
)
def test_an_invalid_service_address_is_refused(url: str) -> None:
    with pytest.raises(BadAddress) as found:
        parse_service_address(url)
    assert TOKEN not in str(found.value)


@pytest.mark.parametrize(
    ("host", "expected"),
    [("127.0.0.1", "127.0.0.1"), ("0.0.0.0", "127.0.0.1"), ("::", "[::1]"), ("::1", "[::1]"), ("[::1]", "[::1]")],
)
def test_a_service_is_asked_where_it_can_be_reached(host: str, expected: str) -> None:
    assert reachable(host) == expected


def test_a_token_comes_from_a_file_and_is_shown_by_nothing(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    assert read_token(file) == TOKEN
    for content in (b"", b"\xff", f"{TOKEN} {TOKEN}".encode(), f"{TOKEN}\nx".encode(), "tökén".encode()):
        file.write_bytes(content)
        with pytest.raises(BadAddress) as found:
            read_token(file)
        assert str(file) in str(found.value)
        assert TOKEN not in str(found.value)
    with pytest.raises(BadAddress, match="No such file"):
        read_token(tmp_path / "nope")
    with pytest.raises(BadAddress):
        check_token("a\r\nx: y", "somewhere")
