"""Encryption of the secrets in stored documents."""

from __future__ import annotations

import base64
import copy
import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connectivity.connections.vault import Vault, mask
from connectivity.errors import AlteredSecret, ConnectivityError, DefinitionError, UnknownKey
from connectivity.security.keys import key_id, key_text, new_key, read_key
from connectivity.security.uri import MASK
from tests.support.cpu_budget import at_most
from tests.support.table import each_row

KEY, OTHER = bytes(range(32)), bytes(range(1, 33))
CANARY = "kanarienvogel"
SEALED = re.compile(r"sealed:v1:[0-9a-f]{16}:[\w-]+")

TUNNEL = {"type": "plain", "username": "hop", "password": f"{CANARY}-t"}
DOCUMENT: dict[str, Any] = {
    "id": "depot-7",
    "uri": f"ssl://fleet:{CANARY}%40@broker.acme.example:8883/v",
    "credentials": {"type": "client-cert", "cert": "CERT", "key": f"{CANARY}\n-k"},
    "sshTunnel": {"uri": "ssh://hop:22", "credentials": TUNNEL},
    "specificConfig": {"storePassword": f"{CANARY}-o", "cleanSession": "false"},
    "tags": ["a"],
}
WHERE = ("uri", "credentials.key", "sshTunnel.credentials.password", "specificConfig.storePassword")


def vault(*keys: bytes) -> Vault:
    return Vault(keys or (KEY,))


def at(document: dict[str, Any], path: str) -> Any:
    for step in path.split("."):
        document = document[step]
    return document


def with_value(path: str, value: object) -> dict[str, Any]:
    """The document with another value at this path."""
    document = copy.deepcopy(DOCUMENT)
    *steps, last = path.split(".")
    holder = document
    for step in steps:
        holder = holder[step]
    holder[last] = value
    return document


def test_a_sealed_document_holds_no_plain_secret_and_can_be_unsealed() -> None:
    before = copy.deepcopy(DOCUMENT)
    sealed = vault().seal(DOCUMENT)
    assert CANARY not in json.dumps(sealed)
    assert len(SEALED.findall(json.dumps(sealed))) == len(WHERE)
    assert vault().unseal(sealed) == DOCUMENT == before


def test_sealing_leaves_other_fields_readable() -> None:
    sealed = vault().seal(DOCUMENT)
    assert SEALED.sub("…", sealed["uri"]) == "ssl://fleet:…@broker.acme.example:8883/v"
    assert (sealed["credentials"]["cert"], sealed["specificConfig"]["cleanSession"]) == ("CERT", "false")


@each_row(
    ("uri", "secret"),
    [
        ("tcp://h:1", None),
        ("tcp://h:1/a@b", None),
        ("tcp://u:p@h:1", "p"),
        ("tcp://u:p:q@h:1", "p:q"),
        ("tcp://u:@h:1", ""),
        ("tcp://token@h:1", "token"),
        # Decoding comes before splitting: this password is `p:q`.
        ("tcp://u%3Ap:q@h:1", "p:q"),
        ("tcp://u%3ap@h:1", "p"),
        ("tcp://u:${env:P}@h:1", None),
        ("tcp://u:${env:P}${file:/a/b}@h:1", None),
        ("tcp://${env:U}:${file:/run/secrets/p@q?#}@h:1", None),
        ("tcp://${env:U}:p@${env:HOST}:1", "p"),
        ("tcp://u:x${env:P}@h:1", "x${env:P}"),
        ("tcp://u:sealed:v1:0123456789abcdef:AAAA@h:1", "sealed:v1:0123456789abcdef:AAAA"),
        ("tcp://sealed:v1:0123456789abcdef:AAAA@h:1", "sealed:v1:0123456789abcdef:AAAA"),
        ("${env:URI}", None),
        ("nonsense", None),
    ],
)
def test_of_an_address_the_password_is_sealed(uri: str, secret: str | None) -> None:
    sealed = vault().seal({"id": "c", "uri": uri})["uri"]
    assert vault().unseal({"id": "c", "uri": sealed}) == {"id": "c", "uri": uri}
    shown = mask({"uri": uri})["uri"]
    if secret is None:
        assert (sealed, shown) == (uri, uri)
    else:
        before, _, after = uri.partition(f"{secret}@")
        assert (SEALED.sub("…", sealed), shown) == (f"{before}…@{after}", f"{before}{MASK}@{after}")


def test_references_stay_and_are_shown() -> None:
    document = {"id": "c", "uri": "tcp://h:1", "credentials": {"key": "${file:client.key}", "password": "${env:A}"}}
    assert vault().seal(document) == mask(document) == document
    assert "literal" not in json.dumps(vault().seal({**document, "credentials": {"key": "literal ${env:A}"}}))


@pytest.mark.parametrize("path", WHERE)
def test_every_secret_is_masked(path: str) -> None:
    assert CANARY not in json.dumps(mask(DOCUMENT))
    assert MASK in at(mask(DOCUMENT), path)
    assert mask(vault().seal(DOCUMENT)) == mask(DOCUMENT)


@pytest.mark.parametrize(
    "document", [{}, {"uri": 5, "credentials": 5, "sshTunnel": [], "specificConfig": "x"}, {"credentials": None}]
)
def test_a_document_of_any_shape_can_be_masked(document: dict[str, Any]) -> None:
    assert set(mask(document)) == set(document)


@pytest.mark.parametrize("value", [5, ["geheim"], {"a": "geheim"}, True])
def test_a_secret_of_the_wrong_type_is_masked(value: object) -> None:
    shown = mask({"uri": value, "credentials": {"key": value}, "specificConfig": {"password": value}})
    assert shown == {"uri": MASK, "credentials": {"key": MASK}, "specificConfig": {"password": MASK}}


def test_a_text_that_is_no_address_is_masked_as_far_as_it_may_be_a_secret() -> None:
    assert "geheim" not in mask({"uri": "u:geheim@h:1"})["uri"]


@given(st.text(), st.text())
def test_any_secret_comes_back(secret: str, other: str) -> None:
    """Texts here are without lone surrogates, which the rules of documents refuse."""
    document = {"id": "c", "credentials": {"key": secret, "password": other}}
    assert vault().unseal(vault().seal(document)) == document


def test_a_secret_that_looks_sealed_is_sealed_like_any_other() -> None:
    sealed = vault().seal(DOCUMENT)
    twice = vault().seal(sealed)
    assert twice != sealed
    assert vault().unseal(twice) == sealed


def test_no_two_sealed_texts_are_equal() -> None:
    texts = {vault().seal(DOCUMENT)["credentials"]["key"] for _ in range(50)}
    nonces = {text.rpartition(":")[2][:16] for text in texts}
    assert len(texts) == len(nonces) == 50


@pytest.mark.parametrize("move", ["to another connection", "to another field", "to another key"])
def test_a_sealed_text_that_was_moved_does_not_open(move: str) -> None:
    sealed = vault(KEY, OTHER).seal(DOCUMENT)
    text = sealed["credentials"]["key"]
    if move == "to another connection":
        moved = {"id": "depot-8", "credentials": {"key": text}}
    elif move == "to another field":
        moved = {"id": "depot-7", "credentials": {"password": text}}
    else:
        moved = {"id": "depot-7", "credentials": {"key": text.replace(key_id(KEY), key_id(OTHER))}}
    with pytest.raises(AlteredSecret, match=r"connection depot-\d, credentials\.(key|password): found a secret"):
        vault(KEY, OTHER).unseal(moved)


@pytest.mark.parametrize("path", WHERE)
def test_an_altered_text_does_not_open_and_the_error_names_the_place_and_no_secret(path: str) -> None:
    sealed = vault().seal(DOCUMENT)
    text = next(iter(SEALED.findall(at(sealed, path))))
    raw = bytearray(base64.urlsafe_b64decode(text.rpartition(":")[2] + "=="))
    for position in (0, 12, len(raw) - 1):
        altered = bytearray(raw)
        altered[position] ^= 1
        forged = f"{text.rpartition(':')[0]}:{base64.urlsafe_b64encode(altered).decode().rstrip('=')}"
        with pytest.raises(AlteredSecret) as raised:
            vault().unseal(json.loads(json.dumps(sealed).replace(text, forged)))
        assert (raised.value.connection, raised.value.path) == ("depot-7", path)
        assert CANARY not in str(raised.value)
        assert forged not in str(raised.value)


@pytest.mark.parametrize("text", ["A", "AAAA", "A" * 16, "_-" * 20])
def test_a_sealed_text_that_is_too_short_or_not_base64_is_reported_as_altered(text: str) -> None:
    with pytest.raises(AlteredSecret):
        vault().unseal({"id": "c", "credentials": {"key": f"sealed:v1:{key_id(KEY)}:{text}"}})


def test_a_key_that_is_not_here_is_named() -> None:
    with pytest.raises(
        UnknownKey, match=f"encrypted with key {key_id(KEY)}, expected one of the keys: {key_id(OTHER)}"
    ):
        vault(OTHER).unseal(vault().seal(DOCUMENT))
    with pytest.raises(ConnectivityError, match="expected one of the keys: none"):
        Vault().unseal(vault().seal(DOCUMENT))


def test_without_a_key_nothing_secret_is_sealed() -> None:
    with pytest.raises(UnknownKey, match=r"connection depot-7, uri: found no encryption key, expected secrets\.key"):
        Vault().seal(DOCUMENT)
    assert Vault().seal({"id": "c", "uri": "tcp://h:1"}) == {"id": "c", "uri": "tcp://h:1"}


def test_a_first_key_is_made_when_it_is_needed_and_once() -> None:
    made: list[bytes] = []

    def make() -> bytes:
        made.append(KEY)
        return KEY

    fresh = Vault((), make)
    assert fresh.seal({"id": "c", "uri": "tcp://u:${env:P}@h:1"}) == {"id": "c", "uri": "tcp://u:${env:P}@h:1"}
    assert made == []
    assert fresh.unseal(fresh.seal(DOCUMENT)) == vault().unseal(fresh.seal(DOCUMENT)) == DOCUMENT
    assert (made, fresh.key_ids) == ([KEY], (key_id(KEY),))


def test_the_first_key_seals_and_all_open() -> None:
    old = vault(OTHER).seal(DOCUMENT)
    both = vault(KEY, OTHER)
    assert both.unseal(old) == DOCUMENT
    assert key_id(KEY) in both.seal(DOCUMENT)["uri"]


def test_sealing_again_moves_every_secret_under_the_newest_key() -> None:
    resealed = vault(KEY, OTHER).reseal(vault(OTHER).seal(DOCUMENT))
    assert resealed.changed == len(WHERE)
    assert vault(KEY).unseal(resealed.document) == DOCUMENT
    again = vault(KEY, OTHER).reseal(resealed.document)
    assert (again.document, again.changed) == (resealed.document, 0)


def test_a_secret_under_an_unknown_key_is_not_resealed() -> None:
    with pytest.raises(UnknownKey):
        vault(KEY).reseal(vault(OTHER).seal(DOCUMENT))


# --- a document that comes back ------------------------------------------------------------------------------------------


def test_a_document_that_comes_back_masked_keeps_its_secrets() -> None:
    assert vault().keep(mask(DOCUMENT), vault().seal(DOCUMENT)) == DOCUMENT


def test_a_new_secret_replaces_the_stored_one_which_need_not_open() -> None:
    changed = with_value("credentials.key", "new")
    assert vault(OTHER).keep(changed, vault(KEY).seal(DOCUMENT)) == changed
    with pytest.raises(UnknownKey):
        vault(OTHER).keep(mask(DOCUMENT), vault(KEY).seal(DOCUMENT))


def test_a_stored_reference_is_shown_and_so_comes_back_as_it_is() -> None:
    document = with_value("credentials.key", "${file:k}")
    assert vault().keep(mask(document), vault().seal(document)) == document


@pytest.mark.parametrize("stored", [None, {"id": "depot-7", "uri": "ssl://broker.acme.example:8883"}])
def test_a_mask_without_a_stored_secret_is_a_problem(stored: dict[str, Any] | None) -> None:
    with pytest.raises(DefinitionError) as raised:
        vault().keep(mask(DOCUMENT), stored)
    assert [problem.path for problem in raised.value.problems] == list(WHERE)


def test_a_password_of_five_stars_can_be_written_encoded() -> None:
    document = {"id": "c", "uri": "tcp://u:%2A%2A%2A%2A%2A@h:1"}
    assert vault().keep(document, None) == document


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("uri", f"ssl://fleet:{MASK}@evil.example:8883/v"),
        ("uri", f"tcp://fleet:{MASK}@broker.acme.example:8883/v"),
        ("uri", f"ssl://fleet:{MASK}@broker.acme.example:8884/v"),
        ("uri", f"ssl://other:{MASK}@broker.acme.example:8883/v"),
        ("specificConfig.bootstrapServers", "evil.example:9092"),
        ("specificConfig.saslMechanism", "plain"),
        ("sshTunnel.enabled", True),
        ("validateCertificates", False),
        ("ca", "another authority"),
    ],
)
def test_a_kept_password_goes_nowhere_else_than_so_far(path: str, value: object) -> None:
    document = mask(with_value(path, value))
    document["sshTunnel"]["credentials"]["password"] = "a new one"
    with pytest.raises(DefinitionError) as raised:
        vault().keep(document, vault().seal(DOCUMENT))
    assert [problem.path for problem in raised.value.problems] == ["uri"]
    assert CANARY not in str(raised.value)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("sshTunnel.uri", "ssh://evil:22"),
        ("sshTunnel.validateHost", False),
        ("sshTunnel.knownHosts", ["SHA256:of-another-host"]),
    ],
)
def test_a_kept_tunnel_password_goes_to_the_same_tunnel_only(path: str, value: object) -> None:
    with pytest.raises(DefinitionError, match=r"sshTunnel\.credentials\.password: found \*\*\*\*\*"):
        vault().keep(mask(with_value(path, value)), vault().seal(DOCUMENT))


def test_a_kept_password_must_be_entered_again_when_the_tunnel_verification_changes() -> None:
    stored = with_value("sshTunnel.enabled", True)
    changed = copy.deepcopy(stored)
    changed["sshTunnel"] |= {"validateHost": False, "credentials": {**TUNNEL, "password": "a new one"}}
    changed["uri"] = mask(changed)["uri"]
    with pytest.raises(DefinitionError) as raised:
        vault().keep(changed, vault().seal(stored))
    assert [problem.path for problem in raised.value.problems] == ["uri"]


@pytest.mark.parametrize(
    "change",
    [
        lambda it: it.update(uri=f"ssl://fleet:{MASK}@broker.acme.example:8883/w"),
        lambda it: it.update(tags=["b"]),
        lambda it: it.update(validateCertificates=True, ca=None),
        lambda it: it["sshTunnel"].update(validateHost=True, knownHosts=[]),
    ],
    ids=["the path", "the tags", "defaults", "defaults of the tunnel"],
)
def test_a_masked_password_is_kept_when_other_fields_change(change: Callable[[dict[str, Any]], None]) -> None:
    document = mask(DOCUMENT)
    change(document)
    assert f":{CANARY}%40@" in vault().keep(document, vault().seal(DOCUMENT))["uri"]


# --- keys ---------------------------------------------------------------------------------------------------------------


def test_many_beginnings_of_references_are_read_once() -> None:
    with at_most(5):  # minutes, where each is looked through to the end
        shown = mask({"id": "a", "uri": "tcp://u:" + "${env:" * 100_000 + "@h:1"})
    assert shown["uri"] == f"tcp://u:{MASK}@h:1"


def test_a_key_is_text_in_settings_and_back() -> None:
    key = new_key()
    assert (len(key), read_key(key_text(key))) == (32, key)
    assert read_key(base64.urlsafe_b64encode(b"\xff" * 32).decode()) == b"\xff" * 32


@pytest.mark.parametrize("text", ["", "short", "geheim" * 20, key_text(KEY)[:-4], "é" * 44, key_text(KEY + KEY)])
def test_a_text_that_is_no_key_is_refused_without_being_shown(text: str) -> None:
    with pytest.raises(ValueError, match="32 bytes in base64") as raised:
        read_key(text)
    assert not text or text not in str(raised.value)


def test_ids_of_keys_and_texts_of_vaults_reveal_nothing_of_the_keys() -> None:
    assert key_id(KEY) != key_id(OTHER)
    assert key_id(KEY) not in KEY.hex()
    assert repr(vault()) == f"Vault({key_id(KEY)})"
    assert "without keys" in repr(Vault())
