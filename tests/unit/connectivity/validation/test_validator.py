"""Valid connection documents, and how their problems are reported."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest
import trustme
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given, settings
from hypothesis import strategies as st

from connectivity.connections.model import Connection
from connectivity.errors import DefinitionError, Problem
from connectivity.security.uri import SECURE_SCHEMES
from connectivity.transports import connection_types, load_connection_type
from connectivity.validation import checks
from connectivity.validation.validator import json_schema, parse
from tests.support.connection_documents import masked_document
from tests.support.cpu_budget import at_most
from tests.support.dice import examples
from tests.support.table import each_row
from tests.support.validation import validate
from tests.support.vectors.connections import Case, base_document, load_cases

SECRET = "s3cr3t-word"


@pytest.fixture
def document() -> dict[str, Any]:
    return base_document("shared")


def only(problems: list[Problem]) -> Problem:
    assert len(problems) == 1, problems
    return problems[0]


@each_row("case", load_cases("shared"), ids=str)
def test_a_document_has_the_problems_of_its_rule(case: Case) -> None:
    case.check()


def test_parse_raises_with_every_problem(document: dict[str, Any]) -> None:
    document |= {"nmae": 1, "clientCount": 0}
    with pytest.raises(DefinitionError) as raised:
        parse(document)
    assert [problem.path for problem in raised.value.problems] == ["clientCount", "nmae"]


def test_parse_gives_the_connection(document: dict[str, Any]) -> None:
    connection = parse(document)
    assert (connection.id, connection.sources[0].addresses) == ("depot-7_rabbit", ("cmd.in",))


@pytest.mark.parametrize("document", [None, 5, "x", [], [{}], True, 1.5])
def test_a_document_that_is_not_an_object_has_one_problem(document: object) -> None:
    assert only(validate(document)).path == "$"


# --- how problems are reported ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value", "hint"),
    [
        ("connectonStatus", "open", "did you mean connectionStatus?"),
        ("connectionStatus", "opne", "did you mean open?"),
        ("connectionType", "amqp091", "did you mean amqp-091?"),
        ("uri", "ampq://h:1", "did you mean amqp?"),
        ("targets", [{"address": "a/b", "topics": ["_/_/things/twin/event"], "authorizationContext": ["x"]}], None),
    ],
)
def test_a_problem_names_the_nearest_known_name(
    document: dict[str, Any], name: str, value: object, hint: str | None
) -> None:
    found = only(validate({**document, name: value}))
    assert found.hint == (hint or "did you mean _/_/things/twin/events?")


def test_a_problem_with_a_placeholder_names_the_nearest_known_one(document: dict[str, Any]) -> None:
    document["targets"][0]["address"] = "events/{{ thig:id }}"
    found = only(validate(document))
    assert found.hint == "did you mean thing?"
    assert "{{ thig:id }}" in found.found


def test_a_problem_with_a_condition_quotes_the_text_of_its_author(document: dict[str, Any]) -> None:
    functions = "fn:filtre(header:kind,'eq','alarm')"
    document["mappingDefinitions"] = {
        "alarms": {"mappingEngine": "Ditto", "options": {}, "incomingConditions": {"isAlarm": functions}}
    }
    found = only(validate(document))
    assert (found.path, found.hint) == ("mappingDefinitions.alarms.incomingConditions.isAlarm", "did you mean filter?")
    assert found.found.startswith(f'"{functions}": ')


def test_a_problem_with_a_filter_of_labels_quotes_the_text_of_its_author(document: dict[str, Any]) -> None:
    functions = "fn:filtre(header:qos,'ne','0')"
    document["sources"][0]["acknowledgementRequests"] = {"includes": ["twin-persisted"], "filter": functions}
    assert only(validate(document)).found.startswith(f'"{functions}": ')


def test_a_problem_with_a_filter_names_the_position(document: dict[str, Any]) -> None:
    document["targets"][0]["topics"] = ["_/_/things/twin/events?filter=gt(attributes/load,"]
    assert "position 19" in only(validate(document)).expected


def test_a_problem_with_an_unknown_property_of_a_filter_names_the_position(document: dict[str, Any]) -> None:
    document["targets"][0]["topics"] = ["_/_/things/twin/events?filter=or(exists(attributes/a),eq(topic:colour,1))"]
    assert "position 27" in only(validate(document)).expected


@pytest.mark.parametrize("name", ["connection:id", "source:address"])
def test_a_placeholder_that_never_has_a_value_in_extra_fields_is_a_problem(document: dict[str, Any], name: str) -> None:
    document["targets"][0]["topics"] = [f"_/_/things/twin/events?extraFields=attributes/{{{{ {name} }}}}"]
    found = only(validate(document))
    assert (found.path, found.code) == ("targets[0].topics[0]", "placeholder:unresolved")
    assert re.fullmatch("a colon after one of entity, .*, topic, in extra fields of targets", found.expected)


def test_a_problem_with_a_placeholder_says_once_what_is_expected(document: dict[str, Any]) -> None:
    document["sources"][0]["replyTarget"] = {"address": "replies/{{ thing:nmae }}"}
    found = only(validate(document))
    assert found.found == "\"replies/{{ thing:nmae }}\": The placeholder 'thing:nmae' could not be resolved"
    reply_targets = "header mappings of sources, addresses and header mappings of their reply-targets"
    assert found.expected == f"one of id, namespace, name after 'thing:', in {reply_targets}"


def test_a_placeholder_of_events_alone_in_a_filter_of_acknowledgement_requests_is_a_problem(
    document: dict[str, Any],
) -> None:
    document["sources"][0]["acknowledgementRequests"] = {"filter": "fn:filter(thing-json:attributes/a,'eq','b')"}
    found = only(validate(document))
    assert (found.path, found.code) == ("sources[0].acknowledgementRequests.filter", "placeholder:unresolved")


def test_a_missing_field_is_explained(document: dict[str, Any]) -> None:
    del document["sources"][0]["addresses"]
    found = only(validate(document))
    assert (found.found, "Addresses to consume" in found.expected) == ("nothing", True)


def test_a_problem_of_one_field_does_not_hide_another_in_the_same_part(document: dict[str, Any]) -> None:
    document["sources"][0] |= {"qos": "1", "payloadMapping": ["Nope"], "enforcement": {"filters": ["{{ no:id }}"]}}
    assert {problem.path for problem in validate(document)} == {
        "sources[0].qos",
        "sources[0].payloadMapping[0]",
        "sources[0].enforcement.input",
        "sources[0].enforcement.filters[0]",
    }


def test_names_in_options_are_texts_at_every_level(document: dict[str, Any]) -> None:
    """YAML reads some names as numbers or dates, which no JSON has."""
    thing = {"thingId": "acme:lamp", "attributes": {"rooms": [{1: "hall", "b": "attic"}]}}
    document["mappingDefinitions"] = {"lamps": {"mappingEngine": "ImplicitThingCreation", "options": {"thing": thing}}}
    found = only(validate(document))
    assert (found.path, found.found) == ("mappingDefinitions.lamps.options", "an object")
    assert found.expected.startswith("an object whose names are texts")


def test_a_problem_names_no_more_mappings_than_a_line_can_show(document: dict[str, Any]) -> None:
    names = ["a" * 5_000, *(f"m{number:03}" for number in range(300))]
    document["mappingDefinitions"] = {name: {"mappingEngine": "Ditto", "options": {}} for name in names}
    document["sources"][0]["payloadMapping"] = ["slim"]
    found = only(validate(document))
    assert found.expected.startswith(f"one of: {'a' * 60}…, m000, ")
    assert "m018, …, CloudEvents" in found.expected


def test_a_faulty_id_brings_no_faulty_labels(document: dict[str, Any]) -> None:
    document |= {"id": "depot 7"}
    document["sources"][0]["declaredAcks"] = ["depot 7:done"]
    assert only(validate(document)).path == "id"


def test_a_former_mapping_context_becomes_a_definition_that_everyone_uses(document: dict[str, Any]) -> None:
    connection = parse({**document, "mappingContext": {"mappingEngine": "Ditto", "options": {}}})
    assert connection.mapping_definitions["javascript"].mapping_engine == "Ditto"
    assert [source.payload_mapping for source in connection.sources] == [("javascript",)]
    assert [target.payload_mapping for target in connection.targets] == [("javascript",)]


# --- certificates -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


def pem_of(certificate: trustme.LeafCert) -> tuple[str, str]:
    """Return chain and PKCS#8 key."""
    key = serialization.load_pem_private_key(certificate.private_key_pem.bytes(), None)
    chain = "".join(blob.bytes().decode() for blob in certificate.cert_chain_pems)
    return chain, pkcs8(key)


def pkcs8(key: Any) -> str:
    encoded: bytes = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return encoded.decode()


def test_1_3_certificates_and_a_key_that_belong_together_are_fine(
    document: dict[str, Any], authority: trustme.CA
) -> None:
    certificate, key = pem_of(authority.issue_cert("client.example"))
    document |= {
        "uri": "amqps://h:1",
        "ca": authority.cert_pem.bytes().decode(),
        "credentials": {"type": "client-cert", "cert": certificate, "key": key},
    }
    assert validate(document) == []


def test_1_3_a_key_of_another_certificate_is_a_problem(document: dict[str, Any], authority: trustme.CA) -> None:
    certificate, _ = pem_of(authority.issue_cert("client.example"))
    _, key = pem_of(authority.issue_cert("other.example"))
    document |= {"uri": "amqps://h:1", "credentials": {"type": "client-cert", "cert": certificate, "key": key}}
    found = only(validate(document))
    assert (found.path, "BEGIN" in str(found)) == ("credentials.key", False)


def test_1_3_a_ca_with_an_insecure_scheme_is_a_problem_of_the_uri(
    document: dict[str, Any], authority: trustme.CA
) -> None:
    document["ca"] = authority.cert_pem.bytes().decode()
    found = only(validate(document))
    assert (found.path, found.code) == ("uri", "connectivity:connection.uri.invalid")


@pytest.mark.parametrize(
    ("kind", "uri", "expected"),
    [
        ("amqp-091", "amqp://h:1", "amqps, because the connection has credentials"),
        ("mqtt", "tcp://h:1", "ssl, because the connection has credentials"),
        ("kafka", "tcp://h:1", "ssl, because the connection has credentials"),
    ],
)
def test_1_3_a_client_certificate_that_no_tls_presents_is_a_problem_of_the_uri(
    document: dict[str, Any], authority: trustme.CA, kind: str, uri: str, expected: str
) -> None:
    """Once it was left out silently."""
    certificate, key = pem_of(authority.issue_cert("client.example"))
    document |= {
        "connectionType": kind,
        "uri": uri,
        "credentials": {"type": "client-cert", "cert": certificate, "key": key},
    }
    [found] = [problem for problem in validate(document) if problem.path == "uri"]
    assert found.expected == expected


def test_1_4_a_key_pair_for_a_tunnel_is_fine(document: dict[str, Any]) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    public = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    document["sshTunnel"] = {
        "enabled": True,
        "validateHost": False,
        "uri": "ssh://bastion.example:22",
        "credentials": {
            "type": "public-key",
            "username": "u",
            "publicKey": public.decode(),
            "privateKey": pkcs8(key),
        },
    }
    assert validate(document) == []


# --- secrets ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["shared", "amqp_091", "kafka"])
def test_no_problem_shows_a_secret(name: str) -> None:
    """Every vector's document carries a password, most of them in a uri that is itself at fault somewhere."""
    for case in load_cases(name):
        assert SECRET not in "".join(map(str, validate(case.document, environ={})))


@pytest.mark.parametrize(
    "uri",
    [
        f"amqp://u:{SECRET}@h",
        f"amqp://u:{SECRET}@h:x",
        f"amqp://u:{SECRET}",
        f"amqp:/u:{SECRET}@h:1",
        f"amqp://u:a/{SECRET}@h:1",
        f"amqp://u:a@{SECRET}@h:1",
        f"amqp://u:a#{SECRET}@h:1",
        f"amqp://u:a?{SECRET}@h:1",
        f"amqp://h:1?password={SECRET}",
        f"amqp://u: {SECRET}@h:1",
        f"amqp://{SECRET}@h",
        f"tcp://u:{SECRET}@h:1",
        f"amqp://u:{SECRET}@169.254.1.1:1",
        f"amqp://u:{SECRET}@h:1/a/b",
    ],
)
def test_an_unusable_uri_does_not_show_its_password(document: dict[str, Any], uri: str) -> None:
    problems = validate({**document, "uri": uri})
    assert problems
    assert SECRET not in "".join(map(str, problems))


def test_misplaced_secrets_are_not_shown(document: dict[str, Any]) -> None:
    document |= {
        "password": SECRET,
        "credentials": {"type": "client-cert", "key": [SECRET], "cert": SECRET, "passwd": SECRET},
        "sshTunnel": {"credentials": {"type": "plain", "username": 5, "password": SECRET, "pass": SECRET}},
    }
    problems = validate(document)
    assert len(problems) > 6
    assert SECRET not in "".join(map(str, problems))


def test_an_option_by_reference_is_neither_shown_by_a_problem_nor_by_the_connection(document: dict[str, Any]) -> None:
    document["specificConfig"] = {"requestedHeartbeat": "${env:BEAT}", "handshakeTimeout": "5"}
    found = only(validate(document, environ={"BEAT": SECRET}))
    assert (found.path, found.found) == ("specificConfig.requestedHeartbeat", "*****")
    connection = parse(document, environ={"BEAT": "2222"})
    assert connection.specific_config["requestedHeartbeat"] == "2222"
    assert masked_document(connection)["specificConfig"] == {
        "requestedHeartbeat": "*****",
        "handshakeTimeout": "5",
    }


def test_a_missing_reference_is_the_only_problem_of_its_place(document: dict[str, Any]) -> None:
    found = only(validate({**document, "uri": "${env:BROKER_URI}"}, environ={}))
    assert (found.path, found.found) == ("uri", "${env:BROKER_URI}, a variable that is not set")


def test_a_missing_environment_variable_is_the_only_problem_of_its_field(
    document: dict[str, Any], authority: trustme.CA
) -> None:
    certificate, _ = pem_of(authority.issue_cert("client.example"))
    own = {"type": "client-cert", "cert": certificate, "key": "${env:CLIENT_KEY}"}
    document |= {"uri": "amqps://h:1", "credentials": own}
    found = only(validate(document, environ={}))
    assert (found.path, found.found) == ("credentials.key", "${env:CLIENT_KEY}, a variable that is not set")


def test_design_8_18_references_are_resolved_while_building(document: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "password").write_text("p@ss:w/rd\n")
    document["uri"] = "amqp://bridge:${file:password}@${env:HOST}:5672/fleet"
    uri = parse(document, environ={"HOST": "mq.example"}, base=tmp_path).broker_uri
    assert uri.password is not None
    assert (uri.host, uri.username, uri.password.get_secret_value()) == ("mq.example", "bridge", "p@ss:w/rd")


# --- schema and page ----------------------------------------------------------------------------------------------------


def models(schema: dict[str, Any]) -> list[dict[str, Any]]:
    return [it for it in (schema, *schema["$defs"].values()) if "properties" in it]


def test_the_schema_knows_every_field_and_nothing_else() -> None:
    schema = json_schema()
    assert set(schema["required"]) == {"id", "connectionType", "connectionStatus", "uri"}
    assert all(model["additionalProperties"] is False for model in models(schema))
    assert {"amqp-091", "kafka", "mqtt", "mqtt-5"} <= set(schema["properties"]["connectionType"]["enum"])


def test_every_field_is_described_with_an_example() -> None:
    for schema in (
        json_schema(),
        *(load_connection_type(name).options.model_json_schema() for name in connection_types()),
    ):
        for model in models({"$defs": {}, **schema}):
            for name, field in model["properties"].items():
                assert field.get("description"), name
                assert field.get("examples"), name


def test_the_example_of_every_field_has_the_shape_of_the_field(document: dict[str, Any]) -> None:
    """The examples replace invalid values while the rest of a document is checked."""
    for name, field in Connection.model_fields.items():
        assert field.examples, name
        for value in field.examples:
            assert name in Connection.model_validate({**document, str(field.alias): value}).model_fields_set


@pytest.mark.parametrize("name", connection_types())
def test_a_connection_type_agrees_with_the_connection_model(name: str) -> None:
    broker = load_connection_type(name)
    secure = {scheme for scheme in (*broker.schemes, *broker.secure_schemes) if scheme in SECURE_SCHEMES}
    assert secure == set(broker.secure_schemes)
    source = {"addresses": ["a"], "authorizationContext": ["x"]}
    uri = f"{broker.schemes[0]}://h:1"
    connection = Connection.model_validate(
        {"id": "a", "connectionType": name, "connectionStatus": "open", "uri": uri, "sources": [source]}
    )
    assert bool(connection.sources[0].header_mapping) is broker.has_headers


def test_no_check_is_left_out() -> None:
    written = {check for name, check in inspect.getmembers(checks, inspect.isfunction) if name.startswith("check_")}
    here = {check for check in written if inspect.getmodule(check) is checks}
    assert here == {*checks.CHECKS, checks.check_type}


# --- any document --------------------------------------------------------------------------------------------------------

NAMES = sorted(
    {str(field.alias) for field in Connection.model_fields.values()}
    | {name for model in models(json_schema()) for name in model["properties"]}
    | {"type", "mappingContext", "_revision", "x"}
)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-3, 70_000)
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(
        [
            *("client-cert", "plain", "public-key", "open", "amqp-091", "kafka", "mqtt", "mqtt-5", "nope"),
            *("amqp://u:pässword@h:1", "amqp://h", "{{ header:x }}", "{{ header:", "${env:HOME}", "${file:/nope}"),
            *("_/_/things/twin/events?filter=eq(a,", "a/b", "fn:filter(", "-----BEGIN CERTIFICATE-----", "\ud800"),
        ]
    )
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(NAMES) | st.text(max_size=3) | st.just("a\ud800"), inner)
    ),
    max_leaves=12,
)


@given(VALUES)
@settings(max_examples=examples(100), deadline=None)
def test_any_document_has_problems_and_nothing_is_raised(value: Any) -> None:
    assert all(isinstance(problem, Problem) for problem in validate(value, environ={}))


@given(st.dictionaries(st.sampled_from(NAMES), VALUES, min_size=1, max_size=4), st.data())
@settings(max_examples=examples(150), deadline=None)
def test_validating_any_changed_document_raises_no_error(change: dict[str, Any], data: st.DataObject) -> None:
    document = base_document(data.draw(st.sampled_from(["shared", "kafka"])))
    holder = data.draw(st.sampled_from([document, document["sources"][0], document["targets"][0]]))
    holder.update(change)
    problems = validate(document, environ={})
    assert SECRET not in "".join(map(str, problems))


@pytest.mark.parametrize(
    "fields",
    [
        {f"k{number}": 1 for number in range(20_000)},
        {"specificConfig": {f"x{number}password": f"${{env:X{number}}}" for number in range(5_000)}},
        {"specificConfig": {f"x{number}password": f"secret-{number}" for number in range(20_000)}},
        {"sources": [{"addresses": ["a"], "authorizationContext": ["a:b"]}] * 5_000},
    ],
    ids=["unknown fields", "missing references", "unknown secrets", "sources"],
)
def test_a_document_with_thousands_of_problems_is_refused_quickly(
    fields: dict[str, Any], document: dict[str, Any]
) -> None:
    with at_most(2), pytest.raises(DefinitionError) as raised:
        parse(document | fields, environ={})
    assert 1 <= len(raised.value.problems) <= 200


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("client_count", 2),
        ("validate_certificates", False),
        ("ssh_tunnel", {"enabled": False}),
        ("specific_config", {}),
        ("sources[0].consumer_count", 2),
        ("sources[0].replyTarget.header_mapping", {}),
        ("specificConfig.keep_alive", "30s"),
    ],
)
def test_a_field_has_one_spelling(path: str, value: object) -> None:
    # With another one, it would pass the rules about its secrets, which know the names of the documentation.
    reply: dict[str, Any] = {"address": "answers"}
    source: dict[str, Any] = {
        "addresses": ["commands"],
        "authorizationContext": ["acme:line"],
        "qos": 1,
        "replyTarget": reply,
    }
    options: dict[str, Any] = {}
    document = {
        "id": "depot",
        "connectionType": "mqtt-5",
        "connectionStatus": "open",
        "uri": "tcp://127.0.0.1:1883",
        "sources": [source],
        "specificConfig": options,
    }
    holder, _, name = path.rpartition(".")
    places = {"": document, "sources[0]": source, "sources[0].replyTarget": reply, "specificConfig": options}
    assert validate(document) == []
    places[holder][name] = value
    assert [(it.path, it.found) for it in validate(document)] == [(path, f'unknown field "{name}"')]
