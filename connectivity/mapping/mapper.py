"""A payload mapper of a source or target: its codec with options, conditions and limits.

A mapper reads a delivery only if the codec's block-list does not contain its content type and all incoming conditions hold,
and writes a signal only if all outgoing conditions hold (Ditto connections, invocation rules). Otherwise the result is
empty, which is not an error. Decoding and encoding are synchronous and do no I/O.

Scripts convert a delivery into messages of the mapper's protocol before it is read (`prepare`), and written messages into
what is sent (`finish`). They run in the script process of the connection.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import TypeAlias

from connectivity.connections.model import Connection, MappingDefinition
from connectivity.mapping.script_host import HostedScripts, ScriptHost
from mappings.errors import DecodeError, EncodeError, Fault, mapping_failed
from mappings.mappers import load_codec
from mappings.mappers.base import Codec
from mappings.model.envelope import Envelope
from mappings.model.signals import Inbound, Next, Outbound
from mappings.placeholders.template import PlaceholderContext, Template, parse

DEFAULT_MAPPER = "Ditto"

Prepared: TypeAlias = Sequence[Envelope] | Exception
"""The result of the scripts for a delivery, or their error."""

_CONTENT_TYPE = "content-type"


_CONDITION = ("{{ fn:default('true') | ", " }}")


def condition(functions: str) -> str:
    """Return the template of a condition, a chain of functions that yields `true` or nothing."""
    return functions.join(_CONDITION)


def source_text(template: str) -> str:
    """Return a template as its author wrote it: for a condition its functions only."""
    before, after = _CONDITION
    return template[len(before) : -len(after)] if template.startswith(before) else template


class ConfiguredMapper:
    """A wire protocol by its name, or a mapping definition with another name.

    `host` runs the scripts, if there are any. Raises InvalidMapperOptions and PlaceholderError for a definition that was not
    validated.
    """

    def __init__(
        self, name: str = DEFAULT_MAPPER, definition: MappingDefinition | None = None, host: ScriptHost | None = None
    ) -> None:
        self.name = name
        self.is_default = name == DEFAULT_MAPPER and definition is None
        codec = load_codec(definition.mapping_engine if definition is not None else name)
        self.codec: Codec = codec if definition is None else codec.configure(definition.options)
        self.protocol = type(codec).__module__.rpartition(".")[2]
        """The name of the wire protocol's module."""
        self.session = self.codec.session()
        self.answers = self.codec.answers
        self._scripts: HostedScripts | None = None
        if (scripts := self.codec.scripts) is not None:
            assert host is not None, "scripts need a script host"
            self._scripts = HostedScripts(scripts, host)
        self.must_prepare = scripts is not None and bool(scripts.incoming)
        """Whether scripts convert deliveries before they are read."""
        self.must_finish = scripts is not None and bool(scripts.outgoing)
        """Whether scripts convert written messages before they are sent."""
        self._incoming = _conditions(definition.incoming_conditions.values() if definition is not None else ())
        self._outgoing = _conditions(definition.outgoing_conditions.values() if definition is not None else ())
        self._blocked = self.codec.blocked
        self._has_templates = self.codec.reads_context
        self.reads_context = self._has_templates or bool(self._incoming)
        self.writes_context = self._has_templates or bool(self._outgoing)
        self._reads_empty = self.codec.reads_empty
        self._max_results = sys.maxsize if self.codec.max_results is None else self.codec.max_results
        names = [name for each in (*self._incoming, *self._outgoing) for name in each.names]
        self.needs_topic = any(name.startswith("topic:") for name in names)
        self.needs_features = "feature:id" in names

    async def prepare(self, envelope: Envelope, context: PlaceholderContext | None) -> Sequence[Envelope]:
        """Return the envelopes that scripts make of an envelope, to be read instead. Raises like `decode`."""
        assert self._scripts is not None, "only scripts prepare"
        return await self._scripts.incoming(envelope) if self._accepts(envelope, context) else ()

    def decode(
        self, envelope: Envelope, context: PlaceholderContext | None, prepared: Prepared | None = None
    ) -> Sequence[Inbound]:
        """Return the signals of an envelope. Raises DecodeError or PlaceholderError.

        `context` describes the delivery; required if the mapper `reads_context`. `prepared` is the result of `prepare`:
        it is read instead of the envelope, or raised.
        """
        if isinstance(prepared, Exception):
            raise prepared
        if prepared is not None:
            signals: Sequence[Inbound] = [
                signal for each in prepared for signal in self.codec.decode(each, self.session)
            ]
        elif not self._accepts(envelope, context):
            return ()
        elif context is None or not self._has_templates:
            signals = self.codec.decode(envelope, self.session)
        else:
            signals = self.codec.decode_with(envelope, self.session, context)
        if len(signals) > self._max_results:
            raise DecodeError(self._too_many(len(signals), self._max_results))
        return signals

    def encode(self, signal: Outbound, context: PlaceholderContext | None) -> Sequence[Envelope]:
        """Return the envelopes of a signal. Raises EncodeError or PlaceholderError.

        `context` describes the signal; required if the mapper `writes_context`.
        """
        if context is not None and not _all_hold(self._outgoing, context):
            return ()
        if context is None or not self._has_templates:
            envelopes = self.codec.encode(signal, self.session)
        else:
            envelopes = self.codec.encode_with(signal, self.session, context)
        if len(envelopes) > self._max_results:
            # The limit applies to each element of a page.
            most = self._max_results * len(signal.elements) if isinstance(signal, Next) else self._max_results
            if len(envelopes) > most:
                raise EncodeError(self._too_many(len(envelopes), most))
        return envelopes

    async def finish(self, envelopes: Sequence[Envelope]) -> Sequence[Envelope]:
        """Return the envelopes that scripts make of written envelopes. Raises EncodeError."""
        assert self._scripts is not None, "only scripts finish"
        return await self._scripts.outgoing(envelopes)

    def _accepts(self, envelope: Envelope, context: PlaceholderContext | None) -> bool:
        """Return whether this mapper reads the envelope. Raises DecodeError for a missing payload."""
        if not self._blocked.isdisjoint(envelope.headers.values()) and envelope.header(_CONTENT_TYPE) in self._blocked:
            return False
        if context is not None and not _all_hold(self._incoming, context):
            return False
        if not envelope.payload and not self._reads_empty:
            raise DecodeError(mapping_failed("The payload is absent or empty."))
        return True

    def _too_many(self, count: int, most: int) -> Fault:
        return mapping_failed(
            f"The mapper '{self.name}' returned {count} messages for one message, more than the limit of {most}."
        )


def mappers_of(
    connection: Connection, payload_mapping: Sequence[str], host: ScriptHost | None = None
) -> list[ConfiguredMapper]:
    """Return the mappers of a `payloadMapping`, in order; `Ditto` if it is empty.

    A name is that of a mapping definition, or else of a wire protocol.
    """
    definitions = connection.mapping_definitions
    return [ConfiguredMapper(name, definitions.get(name), host) for name in payload_mapping or (DEFAULT_MAPPER,)]


def codecs_of(connection: Connection, payload_mapping: Sequence[str]) -> list[Codec]:
    """Return the codecs of these mappers, without the options of mapping definitions."""
    return [load_codec(connection.engine_of(name)) for name in payload_mapping or (DEFAULT_MAPPER,)]


def _conditions(texts: Iterable[str]) -> list[Template]:
    return [parse(condition(text)) for text in texts]


def _all_hold(conditions: Sequence[Template], context: PlaceholderContext) -> bool:
    """Return whether every condition yields `true`."""
    return all((each.resolve(context).first or "").lower() == "true" for each in conditions)
