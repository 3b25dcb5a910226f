"""No text that leaves shows a secret that is in use."""

from __future__ import annotations

import base64
import json
import threading
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connectivity.errors import Detail, NotConnected, PublishFailed
from connectivity.security import redaction
from connectivity.security.redaction import SecretRedactor
from connectivity.security.uri import MASK
from connectivity.validation.validator import parse
from tests.support.cpu_budget import at_most
from tests.support.table import each_row

CANARY = 'kanarien/vo+gel "8" é'
BODY = "MIGHAgEAMBMGByqGSM49AgEGCCqGSM49\nAwEHBG0wawIBAQQgkan4rien0vogel"
KEY = f"-----BEGIN PRIVATE KEY-----\n{BODY}\n-----END PRIVATE KEY-----\n"


def knowing(*secrets: str) -> SecretRedactor:
    known = SecretRedactor()
    known.remember(secrets)
    return known


@pytest.mark.parametrize(
    "written",
    [
        CANARY,
        quote(CANARY, safe=""),
        quote(CANARY),
        quote_plus(CANARY),
        json.dumps(CANARY)[1:-1],
        json.dumps(CANARY, ensure_ascii=False)[1:-1],
        repr(CANARY)[1:-1],
    ],
)
def test_a_secret_is_hidden_in_any_notation(written: str) -> None:
    assert knowing(CANARY).hide(f"before {written}, after") == f"before {MASK}, after"


@each_row("around", [b"", b"\0", b"ab", b"\0user\0"])
@each_row("encode", [base64.b64encode, base64.urlsafe_b64encode])
def test_a_secret_is_hidden_within_base64(around: bytes, encode: object) -> None:
    assert callable(encode)
    text = encode(around + CANARY.encode() + around).decode()
    hidden = knowing(CANARY).hide(f"AUTH {text}")
    assert MASK in hidden
    left = hidden.removeprefix("AUTH ").split(MASK)
    assert sum(map(len, left)) <= 2 * len(around) + 8


@pytest.mark.parametrize("text", [KEY, repr(KEY), json.dumps(KEY), KEY.splitlines()[1], KEY.replace("\n", " ")])
def test_a_key_is_hidden_line_by_line_too(text: str) -> None:
    hidden = knowing(KEY).hide(f"key: {text}")
    assert not any(line in hidden for line in KEY.splitlines()[1:3])


@given(st.text(min_size=8), st.text(), st.text())
def test_no_text_shows_a_secret(secret: str, before: str, after: str) -> None:
    assert secret not in knowing(secret).hide(f"{before}{secret}{after}").replace(MASK, "\0")


def test_the_longest_secret_is_hidden_first_and_several_of_them() -> None:
    known = knowing("kanarien-vogel", "kanarien-vogel-eins", "zaunkoenig")
    assert known.hide("kanarien-vogel-eins kanarien-vogel zaunkoenig") == f"{MASK} {MASK} {MASK}"


def test_short_secrets_do_not_hide_words() -> None:
    assert knowing("guest").hide("a guest of guest") == "a guest of guest"


@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        ("at tcp://u:guest@h:1/v and", f"at tcp://u:{MASK}@h:1/v and"),
        ("amqp://u%3Aguest@h", f"amqp://u%3A{MASK}@h"),
        ('{"a":"tcp://h:1","b":"c:d@e"}', '{"a":"tcp://h:1","b":"c:d@e"}'),
        ("tcp://h:1/a:b@c", "tcp://h:1/a:b@c"),
        (f"tcp://u:{MASK}@h", f"tcp://u:{MASK}@h"),
    ],
)
def test_the_password_of_an_address_is_hidden_known_or_not(text: str, hidden: str) -> None:
    assert SecretRedactor().hide(text) == hidden


def test_a_secret_is_hidden_as_long_as_it_is_in_use_and_for_a_while_after(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redaction, "FORMER", 2)
    known = SecretRedactor()
    used = known.remember(["kanarienvogel"])
    words = [f"nachtigall-{number}" for number in range(4)]
    for word in words:
        known.remember([word])
    assert [known.hide(word) == MASK for word in ("kanarienvogel", *words)] == [True, False, True, True, True]
    del used
    for number in range(4):
        known.remember([f"zaunkoenig-{number}"])
    assert known.hide("kanarienvogel") == "kanarienvogel"


def test_a_secret_that_was_used_again_is_the_latest_former_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redaction, "FORMER", 2)
    known = SecretRedactor()
    for word in ("kanarienvogel", "nachtigall", "kanarienvogel", "zaunkoenig", "rotkehlchen"):
        known.remember([word])
    assert known.hide("kanarienvogel nachtigall zaunkoenig") == f"{MASK} nachtigall {MASK}"


def test_a_secret_is_hidden_as_long_as_one_connection_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redaction, "FORMER", 0)
    known = SecretRedactor()
    one, other = known.remember(["kanarienvogel", "nachtigall"]), known.remember(["kanarienvogel"])
    del one
    known.remember([])
    assert known.hide("kanarienvogel nachtigall") == f"{MASK} nachtigall"
    del other
    known.remember([])
    assert known.hide("kanarienvogel") == "kanarienvogel"


def test_the_service_s_own_secrets_are_always_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redaction, "FORMER", 0)
    known = SecretRedactor()
    known.remember_own(["kanarienvogel"])
    for _ in range(3):
        known.remember(["kanarienvogel"])
    assert known.hide("a kanarienvogel") == f"a {MASK}"


def test_ten_thousand_secrets_do_not_make_lines_slow() -> None:
    known = SecretRedactor()
    used = [known.remember([f"{number:05}-kanarienvogel"]) for number in range(10_000)]
    line = "connection lost " * 20 + "00042-kanarienvogel"
    with at_most(2):  # 20 ms per line, a hundred times the usual time
        for _ in range(100):
            hidden = known.hide(line)
        assert hidden.endswith(MASK)
    assert len(used) == 10_000


@pytest.mark.parametrize("written", ["%3a", "%3A:", "a:", "://", "://a", "://a:"])
def test_a_text_that_is_meant_to_wear_us_out_is_hidden_in_no_time(written: str) -> None:
    text = "found mqtt://" + written * 100_000
    with at_most(5):  # hours, where each of its colons may be the end of the user's name
        assert SecretRedactor().hide(text) == text, "there is no password in it"


@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        ("amqp://u:p:q@h", f"amqp://u:{MASK}@h"),
        ("mqtt://u%3Apass%3ax@h", f"mqtt://u%3A{MASK}@h"),
        ("tcp://%3a%3a@h", f"tcp://%3a{MASK}@h"),
        (f"tcp://u:{MASK}@h", f"tcp://u:{MASK}@h"),
        ("tcp://u@h:1", "tcp://u@h:1"),
    ],
)
def test_a_password_starts_at_the_first_colon_of_an_address(text: str, hidden: str) -> None:
    assert SecretRedactor().hide(f"at {text}, now") == f"at {hidden}, now"


def test_secrets_may_be_remembered_and_hidden_at_the_same_time() -> None:
    known = SecretRedactor()
    used = known.remember(["kanarienvogel"])
    stop, failures = threading.Event(), []

    def remember() -> None:
        number = 0
        while not stop.is_set():
            known.remember([f"kanarie-{number % 50:03}"])
            number += 1

    thread = threading.Thread(target=remember)
    thread.start()
    try:
        failures = [text for text in (known.hide("a kanarienvogel") for _ in range(2000)) if text != f"a {MASK}"]
    finally:
        stop.set()
        thread.join()
    assert (failures, used) == ([], used)


def test_a_connection_that_was_read_has_its_secrets_hidden_in_reasons_of_every_kind() -> None:
    connection = parse(
        {
            "id": "masked-8",
            "connectionType": "amqp-091",
            "connectionStatus": "open",
            "uri": "amqp://u:kanarienvogel%408@h:1",
            "sources": [{"addresses": ["q"], "authorizationContext": ["a"]}],
        }
    )
    error = NotConnected(Detail.REFUSED_BY_BROKER, "who is kanarienvogel@8?")
    assert (error.text, str(error)) == (f"who is {MASK}?", f"refused by broker: who is {MASK}?")
    assert MASK in PublishFailed("kanarienvogel%408").fault.message
    assert connection.model_copy() == connection
