"""Rules of a connection beyond the shape of single fields, in the order of the checks.

Each check yields problems; `CHECKS` has the order of Eclipse Ditto's connection model: numbers of sources and targets,
topics and templates, payload mappings, acknowledgement labels, certificates, hosts, tunnel, response diversion. Connection
types add their own rules.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from pydantic import ValidationError

from connectivity.config.extras import Extra
from connectivity.config.problems import did_you_mean, json_path, show
from connectivity.connections.model import (
    AUTHORIZED_CONNECTIONS,
    CONNECTION_ID_FORM,
    DIVERSION_SWITCHES,
    Connection,
    MappingDefinition,
    PublicKeyCredentials,
    ResponseType,
    Source,
    Target,
)
from connectivity.connections.target_topics import (
    CONNECTION_ANNOUNCEMENTS,
    EXTRA_FIELDS,
    TargetTopic,
    UnknownTargetTopic,
    parse_target_topic,
)
from connectivity.connections.templates import (
    DIVERT_TO,
    DIVERTED_TYPES,
    URI_INVALID,
    check_template,
    has_expression,
    header_of,
    with_connection_id,
    with_dummies,
)
from connectivity.errors import Problem
from connectivity.mapping.mapper import DEFAULT_MAPPER, condition, source_text
from connectivity.mapping.script_check import script_problems
from connectivity.security.egress import refusal
from connectivity.security.tls import is_certificate_with_key, is_certificates, is_key
from connectivity.security.uri import mask_uri, parse_tunnel_uri
from connectivity.transports import ConnectionType, connection_types, load_connection_type
from connectivity.validation.shape import problem_of
from mappings.ids import LIVE_RESPONSE, is_label
from mappings.mappers import Codec, load_codec, mapper_names
from mappings.model.field_selector import InvalidSelector, parse_pointers
from mappings.options import FAILED, InvalidMapperOptions
from mappings.placeholders.address import AddressPattern, InvalidPattern
from mappings.placeholders.template import Scope, is_operand
from mappings.texts import shorten
from spark_store import rql
from spark_store.errors import QueryError, RqlSyntaxError, UnknownProperty

MAX_SOURCES = 4
MAX_TARGETS = 4
MAX_PAYLOAD_MAPPINGS = 10

LABEL_INVALID = "acknowledgement:label.invalid"
LABEL_NOT_UNIQUE = "acknowledgement:label.not.unique"
TOPIC_INVALID = "connectivity:topic.invalid"
FIELDS_INVALID = "things:field.selection.invalid"
MAPPER_INVALID = "connectivity:message.mapper.config.invalid"

_PROPERTY = "a property such as attributes/load, or one of the signal such as topic:action or resource:path"

_CONNECTION_ID = re.compile(CONNECTION_ID_FORM.pattern)
FINGERPRINT_ALGORITHMS = ("MD5", "SHA1", "SHA224", "SHA256", "SHA384", "SHA512")
_FINGERPRINT = re.compile(rf"(?:{'|'.join(FINGERPRINT_ALGORITHMS)}):\S+", re.IGNORECASE)

FOREIGN_WILDCARD = re.compile(r"[+#]|\{\{")
"""Wildcards of MQTT and placeholders, which no address has."""

_LONGEST_NAME, _MOST_NAMES = 60, 20
"""How much of a mapping's name a problem shows, and how many names."""


def check(connection: Connection, repaired: Iterable[str] = ()) -> Iterator[Problem]:
    """Yield every problem beyond shapes. Rules that read a field among `repaired` are left out."""
    skipped = _COMPARES_WITH_ID if "id" in repaired else ()
    for rule in CHECKS:
        if rule not in skipped:
            yield from rule(connection)
    if "connectionType" not in repaired:
        yield from check_type(connection)


def parts(connection: Connection) -> Iterator[tuple[str, Source | Target]]:
    """Yield all sources and targets with their paths."""
    for index, source in enumerate(connection.sources):
        yield json_path("sources", index), source
    for index, target in enumerate(connection.targets):
        yield json_path("targets", index), target


def check_numbers(connection: Connection) -> Iterator[Problem]:
    sources, targets = len(connection.sources), len(connection.targets)
    if sources + targets == 0:
        yield Problem("sources", "neither sources nor targets", "at least one source or one target")
    if sources > MAX_SOURCES:
        yield Problem("sources", f"{sources} sources", f"at most {MAX_SOURCES}")
    if targets > MAX_TARGETS:
        yield Problem("targets", f"{targets} targets", f"at most {MAX_TARGETS}")


def check_topics(connection: Connection) -> Iterator[Problem]:
    for index, target in enumerate(connection.targets):
        for position, text in enumerate(target.topics):
            path = json_path("targets", index, "topics", position)
            try:
                topic = parse_target_topic(text)
            except UnknownTargetTopic as unknown:
                hint = f"did you mean {unknown.nearest}?" if unknown.nearest else None
                yield Problem(path, show(text), str(unknown), hint, TOPIC_INVALID)
            else:
                yield from _check_topic(path, topic, connection)


def _check_topic(path: str, topic: TargetTopic, connection: Connection) -> Iterator[Problem]:
    if topic.topic == CONNECTION_ANNOUNCEMENTS and connection.client_count != 1:
        yield Problem(
            "clientCount", str(connection.client_count), f"1, because a target has the topic {CONNECTION_ANNOUNCEMENTS}"
        )
    if topic.filter is not None:
        yield from _check_filter(path, topic.filter)
    if topic.extra_fields is not None:
        yield from check_template(path, topic.extra_fields, Scope.EXTRA_FIELDS)
        yield from _check_selector(path, topic.extra_fields)


def _check_selector(path: str, text: str) -> Iterator[Problem]:
    try:
        pointers = parse_pointers(with_dummies(text, EXTRA_FIELDS[0]))
    except InvalidSelector as error:
        yield Problem(path, f"extraFields {show(text)}: {error}", "a field selector, such as attributes(site,serial)")
        return
    for name in dict.fromkeys(pointer[0] for pointer in pointers):
        if name not in EXTRA_FIELDS:
            found, hint = f"extraFields that begin with {show(name)}", did_you_mean(name, EXTRA_FIELDS)
            yield Problem(path, found, f"one of: {', '.join(EXTRA_FIELDS)}", hint, FIELDS_INVALID)


def _check_filter(path: str, text: str) -> Iterator[Problem]:
    try:
        rql.parse(text, is_operand)
    except RqlSyntaxError as error:
        expected = f"{error.expected} at position {error.position} of the filter"
        yield Problem(path, f"the filter {show(text)}", expected, code=error.fault.error)
    except UnknownProperty as error:
        expected = f"{_PROPERTY} at position {text.find(error.name)} of the filter"
        yield Problem(path, f"the filter {show(text)}: {error.fault.message}", expected, code=error.fault.error)
    except QueryError as error:
        yield Problem(path, f"the filter {show(text)}: {error.fault.message}", "RQL", code=error.fault.error)


def check_templates(connection: Connection) -> Iterator[Problem]:
    for path, text, scope in _templates(connection):
        yield from check_template(path, text, scope, shown=source_text(text))
    for index, target in enumerate(connection.targets):
        for position, subject in enumerate(target.authorization_context):
            if has_expression(subject):
                path = json_path("targets", index, "authorizationContext", position)
                yield Problem(path, show(subject), "a subject without placeholders")


def _templates(connection: Connection) -> Iterator[tuple[str, str, Scope]]:
    """Yield every template of a connection with its path and scope."""
    for path, part in parts(connection):
        scope = Scope.COMMON if isinstance(part, Target) else Scope.SOURCE
        yield from _each(f"{path}.headerMapping", part.header_mapping, scope)
        if isinstance(part, Target):
            yield f"{path}.address", part.address, Scope.COMMON
            continue
        for index, subject in enumerate(part.authorization_context):
            yield f"{path}.authorizationContext[{index}]", subject, Scope.AUTHORIZATION
        if part.enforcement:
            yield f"{path}.enforcement.input", part.enforcement.input, Scope.ENFORCEMENT_INPUT
            for index, text in enumerate(part.enforcement.filters):
                yield f"{path}.enforcement.filters[{index}]", text, Scope.ENFORCEMENT_FILTER
        if part.acknowledgement_requests and part.acknowledgement_requests.filter:
            functions = part.acknowledgement_requests.filter
            yield f"{path}.acknowledgementRequests.filter", condition(functions), Scope.REQUEST_FILTER
        yield f"{path}.replyTarget.address", part.reply_target.address, Scope.SOURCE
        yield from _each(f"{path}.replyTarget.headerMapping", part.reply_target.header_mapping, Scope.SOURCE)
    for name, definition in connection.mapping_definitions.items():
        for field in ("incomingConditions", "outgoingConditions"):
            conditions = definition.model_dump(by_alias=True, include={"incoming_conditions", "outgoing_conditions"})
            for called, functions in conditions[field].items():
                scope = Scope.MAPPER if field == "incomingConditions" else Scope.COMMON
                yield json_path("mappingDefinitions", name, field, called), condition(functions), scope


def _each(path: str, templates: Mapping[str, str], scope: Scope) -> Iterator[tuple[str, str, Scope]]:
    for name, text in templates.items():
        step = json_path(name)
        yield (path + step if step.startswith("[") else f"{path}.{step}"), text, scope


def check_header_names(connection: Connection) -> Iterator[Problem]:
    """Check that a source maps each header once. The names of a signal's headers are case-insensitive."""
    for index, source in enumerate(connection.sources):
        first: dict[str, str] = {}
        for name in source.header_mapping:
            if (other := first.setdefault(name.lower(), name)) != name:
                expected = f"each header once (names are case-insensitive); remove this entry or {show(other)}"
                yield Problem(json_path("sources", index, "headerMapping", name), show(name), expected)


def check_reply_patterns(connection: Connection) -> Iterator[Problem]:
    key_mark = broker.key_mark if (broker := _broker(connection)) is not None else None
    for index, source in enumerate(connection.sources):
        reply = source.reply_target
        if reply.address_pattern is None:
            continue
        path, expected = json_path("sources", index, "replyTarget", "addressPattern"), "such as clients/*/answers"
        try:
            pattern = AddressPattern(reply.address_pattern)
        except InvalidPattern as error:
            yield Problem(path, f"{show(reply.address_pattern)}: {error}", f"an address pattern {expected}")
            continue
        if (foreign := FOREIGN_WILDCARD.search(reply.address_pattern)) is not None:
            found = f"{show(foreign[0])} in {show(reply.address_pattern)}"
            yield Problem(path, found, f"* for one part of an address, or ** for all remaining parts, {expected}")
        elif not has_expression(reply.address) and not pattern.allows(reply.address, key_mark):
            yield Problem(path, show(reply.address_pattern), f"a pattern that allows the address {show(reply.address)}")


def check_payload_mappings(connection: Connection) -> Iterator[Problem]:
    for path, part in parts(connection):
        path = f"{path}.payloadMapping"
        if len(part.payload_mapping) > MAX_PAYLOAD_MAPPINGS:
            yield Problem(path, f"{len(part.payload_mapping)} entries", f"at most {MAX_PAYLOAD_MAPPINGS}")
        for index, name in enumerate(part.payload_mapping):
            engine = connection.engine_of(name)
            if isinstance(part, Target) and (codec := _codec(engine)) is not None and codec.has_sessions:
                expected = f"a mapper that writes events; {engine} is for sources, whose clients subscribe themselves"
                yield Problem(f"{path}[{index}]", show(name), expected, code=MAPPER_INVALID)
            elif name not in connection.mapping_definitions:
                yield from _check_bare_mapper(f"{path}[{index}]", name, list(connection.mapping_definitions))
    for name, definition in connection.mapping_definitions.items():
        yield from _check_definition(json_path("mappingDefinitions", name), definition)
    if (broker := _broker(connection)) is not None and broker.is_stream:
        yield from _check_stream_readers(connection)


def _check_stream_readers(connection: Connection) -> Iterator[Problem]:
    """Check that mappers of stream deliveries can handle pieces of messages."""
    readers = [name for name in mapper_names() if (codec := _codec(name)) is not None and codec.reads_streams]
    expected = f"a mapper that reads a byte stream: {', '.join(readers)}"
    for number, source in enumerate(connection.sources):
        path = f"sources[{number}].payloadMapping"
        if not source.payload_mapping:
            yield Problem(path, f"no mapper, so the default {DEFAULT_MAPPER} is used", expected, code=MAPPER_INVALID)
        for index, name in enumerate(source.payload_mapping):
            codec = _codec(connection.engine_of(name))
            if codec is not None and not codec.reads_streams:
                yield Problem(f"{path}[{index}]", show(name), expected, code=MAPPER_INVALID)


def check_conversations(connection: Connection) -> Iterator[Problem]:
    """Check that clients of session protocols can be answered."""
    for index, source in enumerate(connection.sources):
        yield from _check_one_conversation(connection, json_path("sources", index, "payloadMapping"), source)
        for name in dict.fromkeys(source.payload_mapping):
            if (codec := _codec_of(connection, name)) is not None and codec.has_sessions:
                path = json_path("sources", index)
                yield from _check_answers(path, name, source, connection)
                if (option := codec.unreliable_option) is not None and source.qos == 0:
                    expected = f"at least 1, since no message to {name} may be lost; or {option}: true in its options"
                    yield Problem(f"{path}.qos", "0", expected)
                if codec.needs_order:
                    yield from _check_order(path, name, source, connection)


def _check_one_conversation(connection: Connection, path: str, source: Source) -> Iterator[Problem]:
    """Check that each source address has one session mapper: two would both reply."""
    heard = [
        name
        for name in source.payload_mapping
        if (codec := _codec_of(connection, name)) is not None and codec.has_sessions
        if (definition := connection.mapping_definitions.get(name)) is None or not definition.incoming_conditions
    ]
    if len(heard) > 1:
        expected = (
            "one of them, since each responds to every client; or incomingConditions that separate their messages"
        )
        yield Problem(path, " and ".join(heard), expected, code=MAPPER_INVALID)


def _check_answers(path: str, name: str, source: Source, connection: Connection) -> Iterator[Problem]:
    """Yield problems of a source whose clients could not receive responses."""
    reply = source.reply_target
    if not reply.enabled:
        expected = f"true, since clients of {name} receive responses and events through the reply target"
        yield Problem(f"{path}.replyTarget.enabled", "false", expected)
        return
    is_mapped = "reply-to" in map(str.lower, source.header_mapping)
    is_in_message = header_of(reply.address) == "reply-to" and not is_mapped
    if is_in_message and (broker := _broker(connection)) is not None and not broker.has_headers:
        expected = f"another address, such as one with source:address: {broker.name} has no headers"
        yield Problem(f"{path}.replyTarget.address", show(reply.address), expected)


def _check_order(path: str, name: str, source: Source, connection: Connection) -> Iterator[Problem]:
    """Check that messages of one client are not spread over several consumers."""
    if (broker := _broker(connection)) is None or broker.keeps_key_order:
        return
    expected = f"1, since the messages of each client to {name} must stay in order"
    if connection.client_count > 1:
        yield Problem("clientCount", str(connection.client_count), expected)
    if source.consumer_count > 1:
        yield Problem(f"{path}.consumerCount", str(source.consumer_count), expected)
    for index, address in enumerate(source.addresses):
        if address.startswith("$share/"):
            expected = f"no shared subscription, since the messages of each client to {name} must stay in order"
            yield Problem(f"{path}.addresses[{index}]", show(address), expected)


def _codec_of(connection: Connection, name: str) -> Codec | None:
    """Return the codec of this name in a connection, with its options; None if either is invalid."""
    definition = connection.mapping_definitions.get(name)
    codec = _codec(connection.engine_of(name))
    try:
        return codec if codec is None or definition is None else codec.configure(definition.options)
    except InvalidMapperOptions:
        return None


def _check_bare_mapper(path: str, name: str, definitions: Sequence[str]) -> Iterator[Problem]:
    if (codec := _codec(name)) is None:
        yield _unknown_mapper(path, name, definitions)
    elif codec.needs_definition:
        needed = ", ".join(option.name for option in codec.options if option.is_required)
        needed = needed or " or ".join(option.name for option in codec.options if option.default is None)
        expected = f"the name of a definition in mappingDefinitions that sets {needed} for {name}"
        yield Problem(path, show(name), expected, code=MAPPER_INVALID)


def _check_definition(path: str, definition: MappingDefinition) -> Iterator[Problem]:
    if (codec := _codec(definition.mapping_engine)) is None:
        yield _unknown_mapper(f"{path}.mappingEngine", definition.mapping_engine)
        return
    try:
        scripts = codec.configure(definition.options).scripts
    except InvalidMapperOptions as error:
        for problem in error.problems:
            place = json_path(*problem.steps)
            place = f"{path}.options{place}" if place.startswith("[") else f"{path}.options.{place}"
            found = "nothing" if problem.value is None else show(problem.value)
            if problem.reason is not None:
                found = f"{found}: {problem.reason}"
            hint = f"did you mean {problem.nearest}?" if problem.nearest else None
            yield Problem(place, found, problem.expected, hint, problem.code)
        return
    if scripts is not None and not Extra.JAVASCRIPT.is_installed:
        yield Problem(f"{path}.mappingEngine", show(definition.mapping_engine), Extra.JAVASCRIPT.expected, code=FAILED)
        return
    for option, wrong in script_problems(scripts) if scripts is not None else ():
        yield Problem(f"{path}.options.{option}", wrong, "a script that can be loaded", code=FAILED)


def _codec(name: str) -> Codec | None:
    try:
        return load_codec(name)
    except LookupError:
        return None


def _unknown_mapper(path: str, name: str, definitions: Sequence[str] = ()) -> Problem:
    # Bounds the text, however many names a document defines.
    own = [shorten(it, _LONGEST_NAME) for it in sorted(definitions)[:_MOST_NAMES]]
    known = [*own, *(["…"] if len(definitions) > _MOST_NAMES else []), *mapper_names()]
    return Problem(path, show(name), f"one of: {', '.join(known)}", did_you_mean(name, known), MAPPER_INVALID)


def check_labels(connection: Connection) -> Iterator[Problem]:
    issued: set[str] = set()
    for path, part in parts(connection):
        if isinstance(part, Source):
            for index, label in enumerate(part.declared_acks):
                yield from _check_label(f"{path}.declaredAcks[{index}]", label, connection.id)
            requests = part.acknowledgement_requests
            for index, label in enumerate(requests.includes if requests else ()):
                own = with_connection_id(label, connection.id)
                if not is_label(own):
                    place = f"{path}.acknowledgementRequests.includes[{index}]"
                    yield Problem(place, show(label), "3 to 100 letters, digits and - _ :", code=LABEL_INVALID)
        elif part.issued_acknowledgement_label is not None:
            path, label = f"{path}.issuedAcknowledgementLabel", part.issued_acknowledgement_label
            own = with_connection_id(label, connection.id)
            if own != LIVE_RESPONSE:
                yield from _check_label(path, label, connection.id)
            if own in issued:
                yield Problem(path, show(label), "a label that no other target has", code=LABEL_NOT_UNIQUE)
            issued.add(own)


def _check_label(path: str, label: str, connection_id: str) -> Iterator[Problem]:
    own = with_connection_id(label, connection_id)
    if not own.startswith(f"{connection_id}:") or len(own) == len(connection_id) + 1 or not is_label(own):
        expected = f"a label such as {connection_id}:done or {{{{connection:id}}}}:done, of letters, digits and - _ :"
        yield Problem(path, show(label), expected, code=LABEL_INVALID)


def check_certificates(connection: Connection) -> Iterator[Problem]:
    if connection.ca is not None and not is_certificates(connection.ca):
        yield Problem("ca", "text that is not a certificate", "one or more X.509 certificates in PEM")
    credentials = connection.credentials
    if credentials is None:
        return
    certificate, key = credentials.cert, credentials.key.get_secret_value() if credentials.key else None
    problems = []
    if certificate is None:
        problems.append(Problem("credentials.cert", "nothing", "an X.509 certificate chain in PEM"))
    elif not is_certificates(certificate):
        problems.append(
            Problem("credentials.cert", "text that is not a certificate", "an X.509 certificate chain in PEM")
        )
    if key is None:
        problems.append(Problem("credentials.key", "nothing", "the private key that belongs to credentials.cert"))
    elif not is_key(key, "PRIVATE KEY"):
        problems.append(_key_problem("credentials.key"))
    yield from problems
    if certificate and key and not problems and not is_certificate_with_key(certificate, key):
        yield Problem(
            "credentials.key", "a key that belongs to another certificate", "the key that belongs to credentials.cert"
        )


def _key_problem(path: str) -> Problem:
    return Problem(
        path, "text that is not a private key", "an unencrypted private key in PEM, PKCS#8 (BEGIN PRIVATE KEY)"
    )


def check_hosts(connection: Connection) -> Iterator[Problem]:
    # The `uri` of a listener is its own address.
    if (broker := _broker(connection)) is None or not broker.is_listener:
        yield from _check_host("uri", connection.broker_uri.host)


def _broker(connection: Connection) -> ConnectionType | None:
    """Return the connection type; None for an unknown one."""
    return (
        load_connection_type(connection.connection_type) if connection.connection_type in connection_types() else None
    )


def _check_host(path: str, host: str) -> Iterator[Problem]:
    if (why := refusal(host)) is not None:
        yield Problem(path, f"{show(host)}, {why.found}", why.expected)


def check_tunnel(connection: Connection) -> Iterator[Problem]:
    tunnel = connection.ssh_tunnel
    if tunnel is None:
        return
    try:
        host, _ = parse_tunnel_uri(tunnel.uri)
    except ValueError as error:
        yield Problem("sshTunnel.uri", show(mask_uri(tunnel.uri)), str(error))
    else:
        yield from _check_host("sshTunnel.uri", host)
    if tunnel.validate_host and not tunnel.known_hosts:
        yield Problem(
            "sshTunnel.knownHosts", "no fingerprint", "at least one fingerprint, because validateHost is true"
        )
    for index, fingerprint in enumerate(tunnel.known_hosts):
        if not _FINGERPRINT.fullmatch(fingerprint):
            expected = "<algorithm>:<hash> with MD5, SHA1, SHA224, SHA256, SHA384 or SHA512"
            yield Problem(f"sshTunnel.knownHosts[{index}]", show(fingerprint), expected)
    credentials = tunnel.credentials
    if isinstance(credentials, PublicKeyCredentials):
        if not is_key(credentials.public_key, "PUBLIC KEY"):
            expected = "a public key in PEM, X.509 (BEGIN PUBLIC KEY)"
            yield Problem("sshTunnel.credentials.publicKey", "text that is not a public key", expected)
        if not is_key(credentials.private_key.get_secret_value(), "PRIVATE KEY"):
            yield _key_problem("sshTunnel.credentials.privateKey")


def check_diversion(connection: Connection) -> Iterator[Problem]:
    options = connection.specific_config
    for name in DIVERSION_SWITCHES:
        if options.get(name, "true").lower() not in ("true", "false"):
            yield Problem(json_path("specificConfig", name), show(options[name]), "true or false")
    if options.get("is-diversion-target", "").lower() == "true":
        for index, target in enumerate(connection.targets):
            if target.topics:
                found = f"{len(target.topics)} topics"
                yield Problem(f"targets[{index}].topics", found, "an empty list, because is-diversion-target is true")
    if AUTHORIZED_CONNECTIONS in options:
        for name in options[AUTHORIZED_CONNECTIONS].split(","):
            if not _CONNECTION_ID.fullmatch(name.strip()):
                path = json_path("specificConfig", AUTHORIZED_CONNECTIONS)
                yield Problem(path, show(name), "IDs of connections, separated by commas")
    for index, source in enumerate(connection.sources):
        yield from _check_diverting_headers(json_path("sources", index, "headerMapping"), source, connection.id)


def _check_diverting_headers(path: str, source: Source, own_id: str) -> Iterator[Problem]:
    known = [kind.value for kind in ResponseType]
    for name, text in source.header_mapping.items():
        if has_expression(text):
            continue
        if name.lower() == DIVERT_TO and text == own_id:
            yield Problem(f"{path}.{name}", show(text), "the ID of another connection")
        elif name.lower() == DIVERT_TO and not _CONNECTION_ID.fullmatch(text):
            yield Problem(f"{path}.{name}", show(text), "the ID of a connection")
        elif name.lower() == DIVERTED_TYPES:
            for each in text.split(","):
                if each.strip().lower() not in known:
                    expected, hint = f"some of: {', '.join(known)}", did_you_mean(each, known)
                    yield Problem(f"{path}.{name}", show(each), expected, hint)


CHECKS: tuple[Callable[[Connection], Iterator[Problem]], ...] = (
    check_numbers,
    check_topics,
    check_templates,
    check_header_names,
    check_reply_patterns,
    check_payload_mappings,
    check_conversations,
    check_labels,
    check_certificates,
    check_hosts,
    check_tunnel,
    check_diversion,
)
_COMPARES_WITH_ID = (check_labels, check_diversion)


def check_type(connection: Connection) -> Iterator[Problem]:
    """Check the connection type: its name, schemes, options, and its own rules."""
    name = connection.connection_type
    if name not in connection_types():
        known = list(connection_types())
        yield Problem("connectionType", show(name), f"one of: {', '.join(known)}", did_you_mean(name, known))
        return
    broker = load_connection_type(name)
    yield from _check_scheme(connection, broker)
    yield from _check_options(connection, broker)
    yield from broker.check(connection)


def _check_scheme(connection: Connection, broker: ConnectionType) -> Iterator[Problem]:
    scheme, known = connection.broker_uri.scheme, tuple(dict.fromkeys((*broker.schemes, *broker.secure_schemes)))
    if scheme not in known:
        expected = f"one of the schemes {', '.join(known)}"
        yield Problem("uri", show(scheme), expected, did_you_mean(scheme, known), URI_INVALID)
    elif scheme not in broker.secure_schemes:
        certificates = {"trusted certificates (ca)": connection.ca, "credentials": connection.credentials}
        if given := " and ".join(what for what, value in certificates.items() if value is not None):
            expected = f"{' or '.join(broker.secure_schemes)}, because the connection has {given}"
            yield Problem("uri", f"the scheme {scheme}, which does not use TLS", expected, code=URI_INVALID)


def _check_options(connection: Connection, broker: ConnectionType) -> Iterator[Problem]:
    try:
        broker.options.model_validate(connection.own_options)
    except ValidationError as error:
        written = {"specificConfig": connection.specific_config}
        for details in error.errors(include_url=False):
            yield problem_of(details, broker.options, written, "specificConfig")
