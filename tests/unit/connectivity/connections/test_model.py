"""The parts of a connection: defaults, null, secrets."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from connectivity.connections.model import Connection, ReplyTarget, ResponseType, Source, SshTunnel
from tests.support.connection_documents import masked_document

SECRET = "s3cr3t-word"
CORRELATION = "{{header:correlation-id}}"
CONTENT_TYPE = "{{header:content-type}}"
REPLY_TO = "{{header:reply-to}}"


def connection(type_: str = "mqtt-5", **more: Any) -> Connection:
    return Connection.model_validate(
        {
            "id": "depot",
            "connectionType": type_,
            "connectionStatus": "open",
            "uri": f"ssl://fleet:{SECRET}@broker.example:8883",
            **more,
        }
    )


def source(type_: str = "mqtt-5", **more: Any) -> Source:
    return connection(type_, sources=[{"addresses": ["a"], "authorizationContext": ["x"], **more}]).sources[0]


def test_1_1_the_defaults_of_a_connection() -> None:
    found = connection()
    assert (found.client_count, found.processor_pool_size, found.failover_enabled, found.validate_certificates) == (
        1,
        1,
        True,
        True,
    )
    assert (found.sources, found.targets, found.tags, found.ca, found.ssh_tunnel) == ((), (), (), None, None)


def test_1_1_options_that_are_no_text_become_text() -> None:
    found = connection(specificConfig={"a": 5, "b": True, "c": 1.5, "d": "x"})
    assert found.specific_config == {"a": "5", "b": "true", "c": "1.5", "d": "x"}


def test_1_1_tags_keep_their_order_and_lose_repeats() -> None:
    assert connection(tags=["b", "a", "b"]).tags == ("b", "a")


def test_1_1_a_blank_ca_is_treated_as_absent() -> None:
    assert connection(ca=" \n").ca is None


def test_1_5_addresses_are_a_set_in_order() -> None:
    assert source(addresses=["b", "a", "b"]).addresses == ("b", "a")


def test_null_is_treated_as_absent() -> None:
    found = source(qos=None, replyTarget=None, headerMapping=None, enforcement=None, consumerCount=None)
    assert (found.consumer_count, found.reply_target.address, found.enforcement) == (1, REPLY_TO, None)


# --- 3.2 the defaults of reply-targets ----------------------------------------------------------------------------------


@pytest.mark.parametrize("written", [{}, {"replyTarget": {}}, {"replyTarget": {"enabled": True}}])
def test_3_2_without_an_address_replies_go_to_the_header_reply_to(written: dict[str, Any]) -> None:
    found = source(**written)
    assert found.reply_target == ReplyTarget(
        address=REPLY_TO, headerMapping={"correlation-id": CORRELATION, "content-type": CONTENT_TYPE}
    )
    assert found.reply_target.expected_response_types == (ResponseType.RESPONSE, ResponseType.ERROR)
    assert found.header_mapping == {
        "correlation-id": CORRELATION,
        "content-type": CONTENT_TYPE,
        "reply-to": REPLY_TO,
    }


@pytest.mark.parametrize("type_", ["amqp-091", "kafka", "mqtt-5"])
def test_3_2_types_with_headers_get_header_mappings(type_: str) -> None:
    assert source(type_).header_mapping


def test_3_2_mqtt_3_1_1_gets_only_the_address() -> None:
    found = source("mqtt")
    assert (found.header_mapping, found.reply_target.header_mapping, found.reply_target.address) == ({}, {}, REPLY_TO)


def test_3_2_a_written_value_has_priority_over_a_default() -> None:
    found = source(
        headerMapping={"content-type": "text/plain", "battery": "{{ header:batt }}"},
        replyTarget={"headerMapping": {"correlation-id": "mine"}, "expectedResponseTypes": ["nack"]},
    )
    assert found.header_mapping == {
        "correlation-id": CORRELATION,
        "content-type": "text/plain",
        "reply-to": REPLY_TO,
        "battery": "{{ header:batt }}",
    }
    assert found.reply_target.header_mapping == {"correlation-id": "mine", "content-type": CONTENT_TYPE}
    assert found.reply_target.expected_response_types == (ResponseType.NACK,)


def test_3_2_an_own_address_brings_no_header_mappings() -> None:
    found = source(replyTarget={"address": "a/b"})
    assert (found.header_mapping, found.reply_target.header_mapping) == ({}, {})


@pytest.mark.parametrize("written", [{"enabled": False}, {"enabled": False, "address": "a/b"}])
def test_3_2_a_reply_target_that_is_switched_off_stays_so(written: dict[str, Any]) -> None:
    found = source(replyTarget=written)
    assert (found.reply_target.enabled, found.header_mapping) == (False, {})


def test_3_2_an_empty_list_of_response_types_stays_empty() -> None:
    assert source(replyTarget={"expectedResponseTypes": []}).reply_target.expected_response_types == ()


def test_the_document_of_a_connection_means_the_same_connection() -> None:
    """A document of the API can be read again, including defaults."""
    written = connection(sources=[{"addresses": ["a"], "authorizationContext": ["x"]}])
    again = Connection.model_validate(masked_document(written) | {"uri": written.uri.get_secret_value()})
    assert again == written


# --- secrets ------------------------------------------------------------------------------------------------------------


def with_secrets() -> Connection:
    return connection(
        credentials={"type": "client-cert", "key": SECRET},
        sshTunnel={
            "enabled": True,
            "validateHost": False,
            "uri": "ssh://b:22",
            "credentials": {"type": "plain", "username": "u", "password": SECRET},
        },
        specificConfig={"token": SECRET, "clientId": "x"},
    ).with_secrets(["token"])


def test_secrets_are_in_no_text_of_a_connection() -> None:
    found = with_secrets()
    texts = [repr(found), str(found), f"{found}", repr(found.credentials), repr(found.ssh_tunnel)]
    texts += [
        repr(found.uri),
        str(found.broker_uri),
        str(masked_document(found)),
        found.model_dump_json(),
    ]
    texts += [str(found.model_dump()), str(found.model_dump(mode="json"))]
    assert SECRET not in "".join(texts)


def test_masked_shows_everything_else() -> None:
    found = masked_document(with_secrets())
    assert found["uri"] == "ssl://fleet:*****@broker.example:8883"
    assert found["specificConfig"] == {"token": "*****", "clientId": "x"}
    assert found["sshTunnel"]["credentials"]["username"] == "u"


def test_secrets_can_be_read_where_they_are_needed() -> None:
    found = with_secrets()
    assert found.broker_uri.password is not None
    assert found.credentials is not None
    assert found.credentials.key is not None
    assert found.broker_uri.password.get_secret_value() == found.credentials.key.get_secret_value() == SECRET


@pytest.mark.parametrize(
    "change",
    [
        {"uri": f"ssl://u:{SECRET}@h"},
        {"uri": [SECRET]},
        {"credentials": {"type": "client-cert", "key": [SECRET]}},
        {"credentials": {"type": "plain", "password": SECRET}},
        {"password": SECRET},
        {"specificConfig": {"a": [SECRET]}},
    ],
)
def test_a_validation_error_shows_no_input(change: dict[str, Any]) -> None:
    with pytest.raises(ValidationError) as raised:
        connection(**change)
    assert SECRET not in str(raised.value)


def test_a_connection_never_changes() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        connection().client_count = 2  # type: ignore[misc]


def test_the_options_of_diversion_are_not_those_of_the_type() -> None:
    found = connection(specificConfig={"is-diversion-source": "true", "clientId": "x"})
    assert found.own_options == {"clientId": "x"}


def test_a_tunnel_needs_all_but_the_fingerprints() -> None:
    with pytest.raises(ValidationError) as raised:
        SshTunnel.model_validate({})
    assert {error["loc"][0] for error in raised.value.errors()} == {"enabled", "credentials", "validateHost", "uri"}
