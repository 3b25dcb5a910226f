"""The codec of one wire protocol: envelope ⇄ signals.

The file name is the registration: `load_codec("Ditto")` imports `mappings/mappers/ditto.py` and takes its `CODEC`. A codec
is stateless; a protocol with state per peer (open IDs, a handshake) keeps it in the object that `session()` returns, which
the caller keeps for the peer's session. `Codec` has the defaults: no options, an error response to unreadable messages.
`PayloadMapper` is the base of the mappers of the Ditto connection model.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, ClassVar, Self

from mappings.mappers.scripts import Scripts
from mappings.model.envelope import Envelope
from mappings.model.signals import MAX_SIGNALS, Inbound, Outbound
from mappings.options import Option, names, read_options
from mappings.placeholders.resolution import unresolved
from mappings.placeholders.template import Template
from mappings.placeholders.values import PlaceholderContext


class Answers(Enum):
    """The errors to which a wire protocol has responses."""

    ALL = "errors of readable and of unreadable messages"
    READ = "errors of readable messages"
    NONE = "no errors"


class Codec(ABC):
    """One wire protocol, with default options, or as `configure` has created it."""

    terminal_needs_request: bool = True
    """Whether `Complete` and `Failed` must wait for the client's first request."""

    options: ClassVar[Sequence[Option]] = ()
    """The options of a mapping definition."""

    needs_definition: ClassVar[bool] = False
    """Whether it requires a definition with options."""

    reads_context: ClassVar[bool] = False
    """Whether it needs more than the envelope or signal: then the methods `…_with` are called."""

    reads_headers: ClassVar[frozenset[str]] = frozenset()
    """The transport headers that it reads without a placeholder in its options, in lower case."""

    reads_empty: ClassVar[bool] = False
    """Whether it reads empty payloads."""

    reads_streams: ClassVar[bool] = False
    """Whether it reads a byte stream in pieces of any size."""

    subprotocol: ClassVar[str | None] = None
    """Its name as a WebSocket subprotocol.

    A peer that has negotiated it is announced before its first message.
    """

    alpn: ClassVar[str | None] = None
    """Its name among the protocols that the ends of a TLS connection agree on."""

    negotiated: ClassVar[str | None] = None
    """The header of a WebSocket client's messages that has the result of `negotiate`.

    Clients cannot set it.
    """

    content_type: ClassVar[str | None] = None
    """The content type of its messages, if they all have the same."""

    answers: ClassVar[Answers] = Answers.ALL

    max_results: ClassVar[int | None] = None
    """The most signals of an envelope, or envelopes of a signal; None for any number."""

    blocked: frozenset[str] = frozenset()
    """Content types of envelopes that it ignores."""

    owns_content_type: ClassVar[bool] = True
    """Whether its content type is part of the protocol: the default header mapping does not replace it."""

    has_sessions: ClassVar[bool] = False
    """Whether messages to clients depend on their requests.

    Then targets cannot use it, nor sources without reply-target.
    """

    needs_order: ClassVar[bool] = False
    """Whether the messages of a client must arrive in order.

    Then one consumer reads a source, unless the broker keeps the order of each client.
    """

    @property
    def unreliable_option(self) -> str | None:
        """Return the option that allows it where messages may be lost (`qos` 0); None if always allowed."""
        return None

    terms: Any = None
    """The options for the session handler."""

    scripts: Scripts | None = None
    """The script calls that must run on envelopes before they are decoded, and after they were encoded."""

    def configure(self, options: Mapping[str, Any]) -> Self:
        """Return the mapper with these options. Raises InvalidMapperOptions."""
        read_options(self.options, options)
        return self

    def message_schema(self) -> Mapping[str, Any] | None:
        """Return the JSON Schema of its messages; None if they are not JSON of one form."""
        return None

    def negotiate(self, query: Mapping[str, str]) -> str | None:  # noqa: ARG002
        """Return the value of the header `negotiated` for the query of an opening request; None for none.

        Raises DecodeError for an unsupported version.
        """
        return None

    def session(self) -> Any:
        """Return the state of a new peer; None if the protocol has none."""
        return None

    @abstractmethod
    def decode(self, envelope: Envelope, session: Any) -> Sequence[Inbound]:
        """Return the signals of an envelope. Raises only DecodeError."""

    def decode_with(self, envelope: Envelope, session: Any, context: PlaceholderContext) -> Sequence[Inbound]:  # noqa: ARG002
        """Return the signals of an envelope, for options with templates.

        `context` has transport headers, subjects, connection and clock. Raises DecodeError, or Unresolved for a template
        without a value.
        """
        return self.decode(envelope, session)

    @abstractmethod
    def encode(self, signal: Outbound, session: Any) -> Sequence[Envelope]:
        """Return the envelopes of `signal`, in order, with the transport headers of the protocol.

        Raises EncodeError for a signal that the protocol cannot express.
        """

    def encode_with(self, signal: Outbound, session: Any, context: PlaceholderContext) -> Sequence[Envelope]:  # noqa: ARG002
        """Return the envelopes of `signal`, with context such as the clock."""
        return self.encode(signal, session)


HONO_NOTIFICATIONS = (
    "application/vnd.eclipse-hono-empty-notification",
    "application/vnd.eclipse-hono-device-provisioning-notification",
    "application/vnd.eclipse-hono-dc-notification+json",
    "application/vnd.eclipse-hono-delivery-failure-notification+json",
)
"""Content types of an Eclipse Hono gateway's notifications about its devices."""

BLOCKLIST = "content-type-blocklist"


def blocklist(*content_types: str) -> Option:
    """The option that every payload mapper has."""
    return Option(
        BLOCKLIST,
        names,
        "Content types that the mapper does not read, separated by commas.",
        "application/vnd.acme.heartbeat,image/png",
        ",".join(content_types),
    )


class PayloadMapper(Codec):
    """A mapper of the Ditto connection model: immutable, created for each definition.

    The Ditto protocol responds to messages that a source's mapper cannot read; a message becomes ten at most.
    """

    options: ClassVar[Sequence[Option]] = (blocklist(),)
    answers = Answers.READ
    max_results = MAX_SIGNALS

    def __init__(self, options: Mapping[str, Any] | None = None) -> None:
        """`options` as `read_options` returns them; None for options that are not given."""
        found = options or {option.name: option.read(option.default) for option in self.options if option.default}
        self.blocked = found.get(BLOCKLIST) or frozenset()
        self.use(found)

    def use(self, options: Mapping[str, Any]) -> None:
        """Store the options. Those without a value are missing or None."""

    def configure(self, options: Mapping[str, Any]) -> Self:
        return type(self)(read_options(self.options, options))


class TemplateMapper(PayloadMapper):
    """A mapper whose options are templates over the delivery; by default it encodes nothing."""

    reads_context = True
    reads_empty = True
    answers = Answers.NONE

    def decode(self, envelope: Envelope, session: Any) -> Sequence[Inbound]:
        return self.decode_with(envelope, session, PlaceholderContext(headers=envelope.headers))

    @abstractmethod
    def decode_with(self, envelope: Envelope, session: Any, context: PlaceholderContext) -> Sequence[Inbound]: ...

    def encode(self, signal: Outbound, session: Any) -> Sequence[Envelope]:  # noqa: ARG002
        return ()


def require(template: Template, context: PlaceholderContext) -> str:
    """Return the first value of an option's template. Raises Unresolved if it has none."""
    if (value := template.resolve(context).first) is None:
        raise unresolved(f"'{template.text}' has no value in this message")
    return value
