"""The model of a connection: a frozen tree of pydantic models that looks like its JSON.

Descriptions and examples of fields go into the JSON Schema and the reference page. Shapes are checked here;
`connectivity.validation.validator` and the connection types check rules across fields, placeholders and filters, with error
codes. `connectivity.validation.validator.parse` is the usual way to get a `Connection`.

Missing parts of a reply-target get their defaults here, so every `Source` has one: it publishes to the address in the
client's `reply-to` header. Secrets are hidden in `repr`, in validation errors and when a connection is serialized.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    Secret,
    SecretStr,
    StrictBool,
    StrictInt,
    StrictStr,
    ValidationInfo,
    field_serializer,
    field_validator,
    model_validator,
)
from pydantic.alias_generators import to_camel

from connectivity.config.text_form import TextForm
from connectivity.security.redaction import Redaction
from connectivity.security.uri import MASK, BrokerUri, is_secret_option, mask_uri, parse_uri
from mappings.texts import lower_text

__all__ = [
    "AcknowledgementRequests",
    "BrokerUri",
    "ClientCertificate",
    "Connection",
    "ConnectionStatus",
    "Enforcement",
    "MappingDefinition",
    "PlainCredentials",
    "PublicKeyCredentials",
    "ReplyTarget",
    "ResponseType",
    "SecretUri",
    "Source",
    "SshTunnel",
    "Target",
]


DEFAULT_REPLY_ADDRESS = "{{header:reply-to}}"
DEFAULT_CONTENT_TYPE = "{{header:content-type}}"
_REPLY_HEADERS = {"correlation-id": "{{header:correlation-id}}", "content-type": DEFAULT_CONTENT_TYPE}
_SOURCE_HEADERS = {name: f"{{{{header:{name}}}}}" for name in ("correlation-id", "content-type", "reply-to")}
_WITHOUT_HEADERS = frozenset({"mqtt"})
_MOST_COUNTED = 64
"""The most clients of a connection, and consumers of each: more would only burden the broker."""
READ_ONLY = frozenset({"_revision", "_created", "_modified", "__lifecycle", "lifecycle", "__revision"})
"""The fields that the service sets, and Ditto in an export; in a written document they are ignored."""
_LEGACY_MAPPING = "javascript"

DIVERSION_SWITCHES = ("is-diversion-source", "is-diversion-target", "preserve-normal-response-via-source")
AUTHORIZED_CONNECTIONS = "authorized-connections-as-sources"
DIVERSION_OPTIONS = frozenset({*DIVERSION_SWITCHES, AUTHORIZED_CONNECTIONS})
"""The options in `specificConfig` that every connection type accepts, to define connection groups."""


def _without_repeats(values: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(values))


def _as_text(value: object) -> object:
    """Numbers and booleans as JSON writes them: options are text, whatever the author's file made of them."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, int | float) else value


def _with_text_names(options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the options if all names are texts, as in JSON; in YAML, `1` is a number. Raises ValueError."""
    if not all(isinstance(name, str) for name in _names(options)):
        raise ValueError('an object whose names are texts at every level, such as "1" in quotes')
    return options


def _names(value: object) -> Iterator[object]:
    """Yield the names in a value, at every level."""
    for item in value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ():
        yield from _names(item)
    if isinstance(value, Mapping):
        yield from value


Text = Annotated[StrictStr, Field(min_length=1)]
Texts = Annotated[tuple[Text, ...], AfterValidator(_without_repeats)]
SomeTexts = Annotated[tuple[Text, ...], Field(min_length=1), AfterValidator(_without_repeats)]
Templates = Mapping[StrictStr, StrictStr]


class SecretUri(Secret[str]):
    """A broker's address that may hold a password: shown masked, read with `get_secret_value()`."""

    def _display(self) -> str:
        return mask_uri(self.get_secret_value())


class DocumentModel(BaseModel):
    """The base of all parts of a connection: camelCase names, frozen, no unknown fields.

    A known field with the value null is treated as absent, since some clients write every field.
    """

    model_config = ConfigDict(alias_generator=to_camel, frozen=True, extra="forbid", hide_input_in_errors=True)

    @model_validator(mode="before")
    @classmethod
    def _null_is_absent(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        known = {field.alias for field in cls.model_fields.values()}
        return {name: value for name, value in data.items() if value is not None or name not in known}


class ConnectionStatus(str, Enum):
    """The status that is requested or reported. The service connects only if `open` is requested."""

    OPEN = "open"
    CLOSED = "closed"
    FAILED = "failed"
    MISCONFIGURED = "misconfigured"
    UNKNOWN = "unknown"


class ResponseType(str, Enum):
    """The types of responses that a reply-target accepts."""

    RESPONSE = "response"
    ERROR = "error"
    NACK = "nack"


class Enforcement(DocumentModel):
    """The check that a sender may send messages about the entity in the payload."""

    input: Text = Field(
        description="Template for the sender's identity, resolved for each delivery: `{{ header:<name> }}`; with MQTT "
        "`{{ source:address }}`, the topic of the message.",
        examples=["{{ header:truck }}", "{{ source:address }}"],
    )
    filters: tuple[StrictStr, ...] = Field(
        default=(),
        description="Templates with the placeholders `thing:`, `policy:` and `entity:` (id, namespace, name). A "
        "signal passes if one of the resolved templates equals the input.",
        examples=[["{{ thing:id }}"], ["trucks/{{ thing:name }}/up"]],
    )


class AcknowledgementRequests(DocumentModel):
    """Acknowledgements that the service adds to those that a source's commands request."""

    includes: Texts = Field(
        default=(),
        description="Labels that are added to the requested acknowledgements of each command.",
        examples=[["twin-persisted"]],
    )
    filter: Text | None = Field(
        default=None,
        description="Functions that filter the list of requested labels. If they return nothing, no acknowledgements "
        "are requested. `header:` refers to a header of the signal or, without one, of the transport.",
        examples=["fn:filter(header:mqtt.qos,'ne','0')"],
    )


class ReplyTarget(DocumentModel):
    """The destination of responses to a source's commands, and of the events of its subscriptions."""

    enabled: StrictBool = Field(
        default=True, description="`false`: no responses to the source's commands are published.", examples=[False]
    )
    address: Text = Field(
        default=DEFAULT_REPLY_ADDRESS,
        description="Template of the address to publish to; `header:` refers to the headers of the received signal.",
        examples=["{{ header:reply-to }}", "replies/{{ thing:name }}"],
    )
    address_pattern: Text | None = Field(
        default=None,
        description="The addresses that responses may be published to: `*` matches one or more characters other than "
        "a slash; `**`, as the last part, matches all the rest. Set this pattern if the `address` is taken from the "
        "sender's headers.",
        examples=["clients/*/answers", "/amq.gen-*"],
    )
    header_mapping: Templates = Field(
        default={},
        description="Transport headers of the response: an object of names and templates. If there is no `address`, "
        "`correlation-id` and `content-type` are mapped by default, on connection types with headers.",
        examples=[{"correlation-id": "{{ header:correlation-id }}"}],
    )
    expected_response_types: tuple[Annotated[ResponseType, BeforeValidator(lower_text)], ...] = Field(
        default=(ResponseType.RESPONSE, ResponseType.ERROR),
        description="Which responses are published. Empty: no responses. Events of subscriptions are always published.",
        examples=[["response", "error", "nack"]],
    )


class Source(DocumentModel):
    """Addresses to consume commands from, and the rules for decoding, permissions and responses."""

    addresses: SomeTexts = Field(
        description="Addresses to consume: MQTT topic filters, AMQP queues, Kafka topics, paths of a WebSocket listener. "
        "Without placeholders.",
        examples=[["fleet/+/cmd"], ["cmd.in"]],
    )
    consumer_count: Annotated[StrictInt, Field(ge=1, le=_MOST_COUNTED)] = Field(
        default=1, description="Number of parallel consumers for each address and client, at most 64.", examples=[2]
    )
    qos: Annotated[StrictInt, Field(ge=0, le=2)] | None = Field(
        default=None,
        description="Quality of service: required for MQTT (0, 1, 2), optional for Kafka (1: at least once).",
        examples=[1],
    )
    authorization_context: SomeTexts = Field(
        description="Subjects whose permissions the source's commands have. Placeholders are resolved for each delivery.",
        examples=[["integration:fleet-commands"], ["device:{{ header:device_id }}"]],
    )
    enforcement: Enforcement | None = Field(
        default=None,
        description="Restricts the entities for which a sender may send signals. Default: all entities that the "
        "policy allows.",
        examples=[{"input": "{{ header:truck }}", "filters": ["{{ thing:id }}"]}],
    )
    acknowledgement_requests: AcknowledgementRequests | None = Field(
        default=None,
        description="Acknowledgements to request for every command.",
        examples=[{"includes": ["twin-persisted"]}],
    )
    header_mapping: Templates = Field(
        default={},
        description="Headers of the signals: an object of case-insensitive names and templates, which can use the "
        "transport's headers. With the default reply target, `correlation-id`, `content-type` and `reply-to` are "
        "mapped, too, on connection types with headers.",
        examples=[{"reply-to": "{{ header:reply-to }}"}],
    )
    payload_mapping: tuple[Text, ...] = Field(
        default=(),
        description="How payloads are decoded: names of payload mappers or of `mappingDefinitions`. Each of them "
        "decodes every delivery, in this order. Empty: `Ditto`.",
        examples=[["Ditto"]],
    )
    reply_target: ReplyTarget = Field(
        default_factory=ReplyTarget,
        description="Where to publish responses. Default: the address in the header `reply-to`.",
        examples=[{"address": "fleet/{{ thing:name }}/res"}],
    )
    declared_acks: Texts = Field(
        default=(),
        description="Labels of acknowledgements that this source may send. Each begins with the connection's id and "
        "a colon.",
        examples=[["{{ connection:id }}:audited"]],
    )

    def with_default_headers(self) -> Source:
        """Return this source with the default header mappings of a reply-target without an address."""
        reply = self.reply_target
        if not reply.enabled or "address" in reply.model_fields_set:
            return self
        complete = {"address": DEFAULT_REPLY_ADDRESS, "header_mapping": _REPLY_HEADERS | dict(reply.header_mapping)}
        # Names of signals' headers are case-insensitive.
        named = {name.lower() for name in self.header_mapping}
        defaults = {name: text for name, text in _SOURCE_HEADERS.items() if name not in named}
        return self.model_copy(
            update={
                "header_mapping": defaults | dict(self.header_mapping),
                "reply_target": reply.model_copy(update=complete),
            }
        )


class Target(DocumentModel):
    """An address that receives the signals of its topics."""

    address: Text = Field(
        description="Template of the address to publish to: MQTT topic, AMQP `exchange/routingKey`, Kafka topic.",
        examples=["fleet/{{ thing:name }}/events", "events/{{ thing:namespace }}.{{ topic:action }}"],
    )
    topics: Texts = Field(
        description="Which signals to publish, such as `_/_/things/twin/events`, with `namespaces`, `filter` and "
        "`extraFields` as percent-encoded parameters.",
        examples=[["_/_/things/twin/events?namespaces=acme.depot&filter=gt(attributes/load,10)"]],
    )
    qos: Annotated[StrictInt, Field(ge=0, le=2)] | None = Field(
        default=None, description="Quality of service: required for MQTT (0, 1, 2).", examples=[1]
    )
    authorization_context: SomeTexts = Field(
        description="Subjects that need permission to read the published signals. Without placeholders.",
        examples=[["integration:fleet-events"]],
    )
    issued_acknowledgement_label: Text | None = Field(
        default=None,
        description="Label of the acknowledgement that is issued when the broker confirms a message. The label "
        "begins with the connection's id and a colon, or is `live-response`. Two targets of a connection cannot have "
        "the same label.",
        examples=["{{ connection:id }}:delivered"],
    )
    header_mapping: Templates = Field(
        default={},
        description="Transport headers of the messages: an object of names and templates.",
        examples=[{"subject": "{{ topic:subject | fn:default(topic:action) }}"}],
    )
    payload_mapping: tuple[Text, ...] = Field(
        default=(),
        description="How signals are encoded: names of payload mappers or of `mappingDefinitions`. Empty: `Ditto`.",
        examples=[["Ditto"]],
    )


class MappingDefinition(DocumentModel):
    """A payload mapper with a name of your choice, options and conditions."""

    mapping_engine: Text = Field(description="Name of the payload mapper.", examples=["Ditto"])
    options: Annotated[Mapping[StrictStr, Any], AfterValidator(_with_text_names)] = Field(
        description="Options of the payload mapper; `{}` for the defaults.", examples=[{}]
    )
    incoming_conditions: Templates = Field(
        default={},
        description="Conditions: an object of names and functions. A delivery is decoded only if every condition "
        "returns a value.",
        examples=[{"isJson": "fn:filter(header:content-type,'like','*json*')"}],
    )
    outgoing_conditions: Templates = Field(
        default={},
        description="Conditions: an object of names and functions. A signal is encoded only if every condition "
        "returns a value.",
        examples=[{"onlyTwin": "fn:filter(topic:channel,'eq','twin')"}],
    )


class ClientCertificate(DocumentModel):
    """A client certificate for TLS."""

    type: Literal["client-cert"] = Field(description="The kind of credentials.", examples=["client-cert"])
    cert: StrictStr | None = Field(
        default=None, description="Certificate chain, PEM.", examples=["${file:/run/secrets/client.crt}"]
    )
    key: SecretStr | None = Field(
        default=None,
        description="Private key, PEM, PKCS#8 (`BEGIN PRIVATE KEY`).",
        examples=["${file:/run/secrets/client.key}"],
    )


class PlainCredentials(DocumentModel):
    """User name and password for a tunnel."""

    type: Literal["plain"] = Field(description="The kind of credentials.", examples=["plain"])
    username: Text = Field(description="User name.", examples=["tunnel"])
    password: SecretStr = Field(description="Password.", examples=["${env:TUNNEL_PASSWORD}"])


class PublicKeyCredentials(DocumentModel):
    """User name and key pair for a tunnel."""

    type: Literal["public-key"] = Field(description="The kind of credentials.", examples=["public-key"])
    username: Text = Field(description="User name.", examples=["tunnel"])
    public_key: Text = Field(description="Public key, PEM (X.509).", examples=["${file:/run/secrets/tunnel.pub}"])
    private_key: SecretStr = Field(
        description="Private key, PEM, PKCS#8.", examples=["${file:/run/secrets/tunnel.key}"]
    )


class SshTunnel(DocumentModel):
    """A tunnel to the broker. Not supported: a connection with an enabled tunnel is not opened."""

    enabled: StrictBool = Field(description="Whether the tunnel is used.", examples=[False])
    credentials: Annotated[PlainCredentials | PublicKeyCredentials, Field(discriminator="type")] = Field(
        description="How to log in to the tunnel's host.",
        examples=[{"type": "plain", "username": "tunnel", "password": "${env:TUNNEL_PASSWORD}"}],
    )
    validate_host: StrictBool = Field(
        description="Whether the host's key must have one of the known fingerprints.", examples=[False]
    )
    known_hosts: Texts = Field(
        default=(),
        description="Fingerprints `<algorithm>:<hash>`, with MD5, SHA1, SHA224, SHA256, SHA384 or SHA512.",
        examples=[["SHA256:mJ0yHSeqHCsVFAvnxGrGMqDTbZYTVzDQLcKZJ5ZBxEw"]],
    )
    uri: Text = Field(description="`ssh://host:port`.", examples=["ssh://bastion.acme.example:22"])


def _uri_is_address(value: object) -> object:
    """Validate an address with a better message than pydantic's."""
    text = value.get_secret_value() if isinstance(value, SecretUri) else value
    if not isinstance(text, str):
        raise ValueError("a string")
    parse_uri(text)
    return value


CONNECTION_ID_FORM = TextForm(r"^[a-zA-Z0-9\-_:]{1,100}$", "1 to 100 letters, digits and the characters - _ :")


class Connection(DocumentModel):
    """A link to one broker: the sources to consume commands from and the targets to publish signals to."""

    id: Annotated[StrictStr, CONNECTION_ID_FORM] = Field(
        description="ID of the connection: up to 100 letters, digits, `-`, `_`, `:`. It is optional in a file, where the "
        "default is the file's name, and in a POST, where the service generates a missing one.",
        examples=["depot-7_rabbit"],
    )
    name: StrictStr | None = Field(default=None, description="Display name: any text.", examples=["Depot 7 commands"])
    connection_type: Text = Field(
        description="The broker's protocol: `mqtt`, `mqtt-5`, `amqp-091`, `kafka`, or `websocket` and `tcp` without a "
        "broker. Cannot be changed later.",
        examples=["mqtt-5"],
    )
    connection_status: ConnectionStatus = Field(
        description="Desired status: `open` or `closed`. The service connects only if it is `open`.", examples=["open"]
    )
    uri: Annotated[SecretUri, BeforeValidator(_uri_is_address, json_schema_input_type=str)] = Field(
        description="Address of the broker or of the listener: `scheme://[user:password@]host:port[/path]`, with reserved "
        "characters percent-encoded.",
        examples=["ssl://fleet:${env:MQTT_PASSWORD}@broker.acme.example:8883"],
    )
    credentials: ClientCertificate | None = Field(
        default=None,
        description="A client certificate with its key; for a listener, its server certificate. Needs a `uri` with TLS. "
        "User name and password belong in `uri`.",
        examples=[{"type": "client-cert", "cert": "${file:client.crt}", "key": "${file:client.key}"}],
    )
    sources: tuple[Source, ...] = Field(
        default=(),
        description="Addresses to consume, at most 4 sources. The index of a source is its position in this list.",
        examples=[[{"addresses": ["fleet/+/cmd"], "qos": 1, "authorizationContext": ["integration:fleet"]}]],
    )
    targets: tuple[Target, ...] = Field(
        default=(),
        description="Addresses to publish to, at most 4 targets.",
        examples=[
            [
                {
                    "address": "fleet/{{ thing:name }}/events",
                    "topics": ["_/_/things/twin/events"],
                    "qos": 1,
                    "authorizationContext": ["integration:fleet"],
                }
            ]
        ],
    )
    ssh_tunnel: SshTunnel | None = Field(
        default=None,
        description="Not supported: a connection with an enabled tunnel is not opened.",
        examples=[
            {
                "enabled": False,
                "credentials": {"type": "plain", "username": "tunnel", "password": "${env:TUNNEL_PASSWORD}"},
                "validateHost": False,
                "uri": "ssh://bastion.acme.example:22",
            }
        ],
    )
    client_count: Annotated[StrictInt, Field(ge=1, le=_MOST_COUNTED)] = Field(
        default=1,
        description="Number of parallel clients, each with its own link and all sources; each message goes to one "
        "client. At most 64.",
        examples=[2],
    )
    failover_enabled: StrictBool = Field(
        default=True,
        description="Whether to try again after a lost link or a failed first attempt. A link that the service itself "
        "renews, such as for redeliveries, is not lost.",
        examples=[True],
    )
    validate_certificates: StrictBool = Field(
        default=True, description="TLS: whether the broker's certificate and host name are checked.", examples=[True]
    )
    ca: StrictStr | None = Field(
        default=None,
        description="TLS: trusted certificates, PEM, in place of those of the system.",
        examples=["${file:/etc/ssl/acme-ca.pem}"],
    )
    processor_pool_size: Annotated[StrictInt, Field(ge=1)] = Field(
        default=1,
        description="Has no effect: a connection maps its payloads one after the other.",
        examples=[1],
    )
    specific_config: Mapping[StrictStr, Annotated[StrictStr, BeforeValidator(_as_text)]] = Field(
        default={},
        description="Options of the connection type; all values are text.",
        examples=[{"cleanSession": "false"}],
    )
    mapping_definitions: Mapping[StrictStr, MappingDefinition] = Field(
        default={},
        description="Payload mappers with options, by a name that `payloadMapping` can use.",
        examples=[{"twinOnly": {"mappingEngine": "Ditto", "options": {}}}],
    )
    tags: Texts = Field(default=(), description="Tags for finding the connection.", examples=[["depot", "prod"]])

    _referenced: frozenset[str] = PrivateAttr(default=frozenset())
    _redaction: Redaction | None = PrivateAttr(default=None)

    @model_validator(mode="before")
    @classmethod
    def _without_read_only_and_legacy_fields(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        kept = {name: value for name, value in data.items() if name not in READ_ONLY}
        return migrate_mapping_context(kept)

    @field_validator("ca", mode="after")
    @classmethod
    def _blank_is_absent(cls, value: str | None) -> str | None:
        return value if value and value.strip() else None

    @field_validator("sources", mode="after")
    @classmethod
    def _default_headers(cls, sources: tuple[Source, ...], info: ValidationInfo) -> tuple[Source, ...]:
        if info.data.get("connection_type") in _WITHOUT_HEADERS:
            return sources
        return tuple(source.with_default_headers() for source in sources)

    @field_serializer("specific_config")
    def _masked_options(self, options: Mapping[str, str]) -> dict[str, str]:
        hidden = {name for name in options if name in self._referenced or is_secret_option(name)}
        return {name: MASK if name in hidden else value for name, value in options.items()}

    @cached_property
    def broker_uri(self) -> BrokerUri:
        """The parsed `uri`."""
        return parse_uri(self.uri.get_secret_value())

    @property
    def own_options(self) -> dict[str, str]:
        """The options of the connection type in `specificConfig`."""
        return {name: value for name, value in self.specific_config.items() if name not in DIVERSION_OPTIONS}

    def engine_of(self, mapper: str) -> str:
        """Return the mapping engine of a payload mapper: that of its definition, else its own name."""
        definition = self.mapping_definitions.get(mapper)
        return mapper if definition is None else definition.mapping_engine

    def with_secrets(self, options: Iterable[str], redaction: Redaction | None = None) -> Connection:
        """Return this connection with the values of these `specificConfig` options masked as secrets.

        `redaction` lasts as long as the connection and its copies.
        """
        copy = self.model_copy()
        copy._referenced = self._referenced | frozenset(options)
        copy._redaction = redaction
        return copy

    def __repr_args__(self) -> Iterable[tuple[str | None, Any]]:
        yield "id", self.id
        yield "type", self.connection_type
        yield "status", self.connection_status.value
        yield "uri", mask_uri(self.uri.get_secret_value())
        yield "sources", len(self.sources)
        yield "targets", len(self.targets)


def migrate_mapping_context(document: dict[str, Any]) -> dict[str, Any]:
    """Return the document with the former `mappingContext` as a definition of all sources and targets."""
    if "mappingContext" not in document:
        return document
    context, migrated = document["mappingContext"], {k: v for k, v in document.items() if k != "mappingContext"}
    if context is None:
        return migrated
    definitions = document.get("mappingDefinitions") or {}
    if not isinstance(definitions, dict):
        return document
    migrated["mappingDefinitions"] = {**definitions, _LEGACY_MAPPING: context}
    for name in ("sources", "targets"):
        parts = document.get(name)
        if isinstance(parts, list):
            migrated[name] = [_using_legacy_mapping(part) for part in parts]
    return migrated


def _using_legacy_mapping(part: Any) -> Any:
    if not isinstance(part, dict) or not isinstance(mappings := part.get("payloadMapping") or [], list):
        return part
    return {**part, "payloadMapping": [*mappings, _LEGACY_MAPPING]}
