"""The codec of one wire protocol: envelope ⇄ signals.

The name of the file is the registration: `load_codec("Ditto")` imports `mappings/mappers/ditto.py` and takes its `CODEC`.
A codec is stateless for itself; a protocol that remembers something per peer (open ids, a handshake, "first item seen")
keeps it in the object that `session()` returns, which the caller holds for as long as the peer's session lives.

`Codec` says what every wire protocol may leave as it is: no options, an answer to whatever cannot be read. `PayloadMapper`
is what the mappers of the Ditto connection model share beyond that.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, ClassVar, Self

from mappings.mappers.scripts import Scripts
from mappings.model.envelope import Envelope
from mappings.model.signals import Inbound, Outbound
from mappings.options import Option, names, read_options
from mappings.placeholders.resolution import unresolved
from mappings.placeholders.template import Template
from mappings.placeholders.values import PlaceholderContext


class Answers(Enum):
    """Which error answers a wire protocol has words for."""

    ALL = "also those to what it could not read"
    READ = "those to what it has read"
    NONE = "none"


class Codec(ABC):
    """One wire protocol, with its options as they are without a definition, or as `configured` has made it."""

    terminal_needs_request: bool = True
    """Whether `Complete` and `Failed` must wait for the client's first request."""

    options: ClassVar[Sequence[Option]] = ()
    """What a definition may say about it."""

    needs_definition: ClassVar[bool] = False
    """Whether it works only under a definition with options."""

    reads_context: ClassVar[bool] = False
    """Whether reading and writing need more than the envelope or signal: then the methods `…_with` are called."""

    reads_empty: ClassVar[bool] = False
    """Whether a payload without bytes means something."""

    reads_streams: ClassVar[bool] = False
    """Whether it reads a stream of octets, in whatever pieces they come."""

    subprotocol: ClassVar[str | None] = None
    """Its name among the subprotocols of WebSockets.

    A peer that has agreed on it is told of before it has said anything.
    """

    alpn: ClassVar[str | None] = None
    """Its name among the protocols that the ends of a TLS connection agree on."""

    answers: ClassVar[Answers] = Answers.ALL

    most_results: ClassVar[int | None] = None
    """How many signals an envelope, or envelopes a signal, may become; None for any number."""

    blocked: frozenset[str] = frozenset()
    """Content types of envelopes that are none of its business."""

    owns_content_type: ClassVar[bool] = True
    """Whether its content type is a part of the protocol: what a reply-target maps by default leaves it alone."""

    has_sessions: ClassVar[bool] = False
    """Whether what is sent to its clients depends on what they have said: then targets, which nobody speaks at, have no use
    for it, and sources have none without a reply-target."""

    needs_order: ClassVar[bool] = False
    """Whether the messages of a client have to come in their order: then one consumer reads a source, unless the broker
    keeps together what one client sends."""

    @property
    def reliable_unless(self) -> str | None:
        """The option that would let it be used where messages may be lost (`qos` 0); None where it can be used there."""
        return None

    terms: Any = None
    """What a definition says that concerns the sessions of its clients: their desk goes by it."""

    scripts: Scripts | None = None
    """What has to be run upon an envelope before it is read, and upon those that were written."""

    def configured(self, options: Mapping[str, Any]) -> Self:
        """The codec with these options, as a definition has them. Raises OptionsRefused."""
        read_options(self.options, options)
        return self

    def session(self) -> Any:
        """A new peer's state, or None where the protocol needs none."""
        return None

    @abstractmethod
    def decode(self, envelope: Envelope, session: Any) -> Sequence[Inbound]:
        """The signals of an envelope. Raises DecodeError, and nothing else, for what cannot be read."""

    def decode_with(self, envelope: Envelope, session: Any, context: PlaceholderContext) -> Sequence[Inbound]:  # noqa: ARG002
        """The same where the options have templates: `context` holds transport headers, subjects, connection and clock.

        Raises DecodeError, or Unresolved for a template without a value.
        """
        return self.decode(envelope, session)

    @abstractmethod
    def encode(self, signal: Outbound, session: Any) -> Sequence[Envelope]:
        """The envelopes that say `signal`, in order; their headers are the transport headers the protocol itself sets.

        Raises EncodeError for a signal that the protocol has no words for.
        """

    def encode_with(self, signal: Outbound, session: Any, context: PlaceholderContext) -> Sequence[Envelope]:  # noqa: ARG002
        """The same with what is known around the signal, such as the clock."""
        return self.encode(signal, session)


HONO_NOTIFICATIONS = (
    "application/vnd.eclipse-hono-empty-notification",
    "application/vnd.eclipse-hono-device-provisioning-notification",
    "application/vnd.eclipse-hono-dc-notification+json",
    "application/vnd.eclipse-hono-delivery-failure-notification+json",
)
"""Content types of what an Eclipse Hono gateway says about its devices, rather than for them."""

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
    """A mapper of the Ditto connection model: an immutable value, made anew for each definition.

    What a source's mapper cannot read is answered by the Ditto protocol, and no message becomes more than ten.
    """

    options: ClassVar[Sequence[Option]] = (blocklist(),)
    answers = Answers.READ
    most_results = 10

    def __init__(self, options: Mapping[str, Any] | None = None) -> None:
        """`options` as `read_options` gives them; None for what is written nowhere."""
        found = options or {option.name: option.read(option.default) for option in self.options if option.default}
        self.blocked = found.get(BLOCKLIST) or frozenset()
        self.use(found)

    def use(self, options: Mapping[str, Any]) -> None:
        """Keep what the options say. Those without a value are missing or None."""

    def configured(self, options: Mapping[str, Any]) -> Self:
        return type(self)(read_options(self.options, options))


class TemplateMapper(PayloadMapper):
    """A mapper whose options are templates over the delivery, and which, unless it says otherwise, writes nothing."""

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
    """The first value of an option's template. Raises Unresolved where it has none."""
    if (value := template.resolve(context).first) is None:
        raise unresolved(f"'{template.text}' has no value in this message")
    return value
