"""One payload mapper of a source or target, ready for use: its codec with its options, its conditions, its bounds.

A mapper reads a delivery only if the codec's block-list does not name its content type and every incoming condition keeps
its value, and writes a signal only if every outgoing one does (Ditto connections, invocation rules). What it is not meant
for comes to nothing, which is no fault. Neither method waits or talks to anybody.

Where a mapper has scripts, they make messages of its protocol of a delivery before it is read (`prepare`), and what is sent
of the messages that were written (`finish`). That takes its time, in the connection's script process.
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
"""What scripts have made of a delivery, or why they have not."""

_CONTENT_TYPE = "content-type"


_CONDITION = ("{{ fn:default('true') | ", " }}")


def condition(functions: str) -> str:
    """The template of a condition, which is a run of functions: `true` comes out of it, or nothing."""
    return functions.join(_CONDITION)


def as_written(template: str) -> str:
    """A template as its author wrote it: of a condition the functions alone."""
    before, after = _CONDITION
    return template[len(before) : -len(after)] if template.startswith(before) else template


class ConfiguredMapper:
    """A wire protocol by its name, or a definition of one under another name.

    `host` runs its scripts, where it has some. Raises OptionsRefused and PlaceholderError for a definition that no check
    has seen.
    """

    def __init__(
        self,
        name: str = DEFAULT_MAPPER,
        definition: MappingDefinition | None = None,
        host: ScriptHost | None = None,
    ) -> None:
        self.name = name
        self.is_default = name == DEFAULT_MAPPER and definition is None
        codec = load_codec(definition.mapping_engine if definition is not None else name)
        self.codec: Codec = codec if definition is None else codec.configured(definition.options)
        self.protocol = type(codec).__module__.rpartition(".")[2]
        """The name of the wire protocol's module."""
        self.session = self.codec.session()
        self.answers = self.codec.answers
        self._scripts: HostedScripts | None = None
        if (scripts := self.codec.scripts) is not None:
            assert host is not None, "scripts run nowhere else"
            self._scripts = HostedScripts(scripts, host)
        self.must_prepare = scripts is not None and bool(scripts.incoming)
        """Whether deliveries are prepared before they are read."""
        self.must_finish = scripts is not None and bool(scripts.outgoing)
        """Whether what was written is finished before it is sent."""
        self._incoming = _conditions(definition.incoming_conditions.values() if definition is not None else ())
        self._outgoing = _conditions(definition.outgoing_conditions.values() if definition is not None else ())
        self._blocked = self.codec.blocked
        self._has_templates = self.codec.reads_context
        self.reads_context = self._has_templates or bool(self._incoming)
        self._reads_empty = self.codec.reads_empty
        self._most = sys.maxsize if self.codec.most_results is None else self.codec.most_results
        names = [name for each in (*self._incoming, *self._outgoing) for name in each.names]
        self.needs_topic = any(name.startswith("topic:") for name in names)
        self.needs_features = "feature:id" in names

    def __repr__(self) -> str:
        return f"<Mapper {self.name}>"

    async def prepare(self, envelope: Envelope, context: PlaceholderContext | None) -> Sequence[Envelope]:
        """What scripts make of an envelope, to be read in its place. Raises like `decode`."""
        assert self._scripts is not None, "only scripts prepare"
        return await self._scripts.incoming(envelope) if self._is_meant(envelope, context) else ()

    def decode(
        self, envelope: Envelope, context: PlaceholderContext | None, prepared: Prepared | None = None
    ) -> Sequence[Inbound]:
        """The signals of an envelope. Raises DecodeError, and PlaceholderError for values that a template cannot use.

        `context` tells what is known of the delivery; it is there where the mapper `reads_context`. `prepared` came of
        `prepare`: it is read, and an error raised, in place of the envelope.
        """
        if isinstance(prepared, Exception):
            raise prepared
        if prepared is not None:
            signals: Sequence[Inbound] = [
                signal for each in prepared for signal in self.codec.decode(each, self.session)
            ]
        elif not self._is_meant(envelope, context):
            return ()
        elif context is None or not self._has_templates:
            signals = self.codec.decode(envelope, self.session)
        else:
            signals = self.codec.decode_with(envelope, self.session, context)
        if len(signals) > self._most:
            raise DecodeError(self._too_many(len(signals), self._most))
        return signals

    def encode(self, signal: Outbound, context: PlaceholderContext) -> Sequence[Envelope]:
        """The envelopes that say `signal`. Raises EncodeError, and PlaceholderError like `decode`."""
        if self._outgoing and not _all_hold(self._outgoing, context):
            return ()
        if self._has_templates:
            envelopes = self.codec.encode_with(signal, self.session, context)
        else:
            envelopes = self.codec.encode(signal, self.session)
        if len(envelopes) > self._most:
            # Elements that come together are signals of their own.
            most = self._most * len(signal.elements) if isinstance(signal, Next) else self._most
            if len(envelopes) > most:
                raise EncodeError(self._too_many(len(envelopes), most))
        return envelopes

    async def finish(self, envelopes: Sequence[Envelope]) -> Sequence[Envelope]:
        """What scripts make of the envelopes that were written. Raises EncodeError."""
        assert self._scripts is not None, "only scripts finish"
        return await self._scripts.outgoing(envelopes)

    def _is_meant(self, envelope: Envelope, context: PlaceholderContext | None) -> bool:
        """Whether there is something to read for this mapper. Raises DecodeError for a payload that is missing."""
        if not self._blocked.isdisjoint(envelope.headers.values()) and self._is_blocked(envelope):
            return False
        if context is not None and not _all_hold(self._incoming, context):
            return False
        if not envelope.payload and not self._reads_empty:
            raise DecodeError(mapping_failed("As payload was absent or empty, nothing can be read."))
        return True

    def _is_blocked(self, envelope: Envelope) -> bool:
        return envelope.header(_CONTENT_TYPE) in self._blocked

    def _too_many(self, found: int, most: int) -> Fault:
        return mapping_failed(
            f"The mapper '{self.name}' made {found} messages of one, which exceeds the limit of {most}."
        )


def mappers_of(
    connection: Connection, payload_mapping: Sequence[str], host: ScriptHost | None = None
) -> list[ConfiguredMapper]:
    """The mappers that a `payloadMapping` names, in order: definitions count before wire protocols; none is `Ditto`."""
    definitions = connection.mapping_definitions
    return [ConfiguredMapper(name, definitions.get(name), host) for name in payload_mapping or (DEFAULT_MAPPER,)]


def codecs_of(connection: Connection, payload_mapping: Sequence[str]) -> list[Codec]:
    """The wire protocols behind these mappers, as they are without a definition's options."""
    definitions = connection.mapping_definitions
    names = payload_mapping or (DEFAULT_MAPPER,)
    return [load_codec(definitions[name].mapping_engine if name in definitions else name) for name in names]


def _conditions(texts: Iterable[str]) -> list[Template]:
    return [parse(condition(text)) for text in texts]


def _all_hold(conditions: Sequence[Template], context: PlaceholderContext) -> bool:
    """Whether every condition keeps its value."""
    return all((each.resolve(context).first or "").lower() == "true" for each in conditions)
