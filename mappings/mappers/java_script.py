"""JavaScript: the Ditto protocol, with scripts of the operator around it.

It decodes the result of the incoming script, and encodes the argument of the outgoing script. The scripts run elsewhere
(`mappings/mappers/scripts.py` has their arguments and results), since codecs are pure. A direction without a script is the
Ditto protocol. Ditto connections, payload mapping.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

from mappings.mappers.base import Codec, PayloadMapper, blocklist
from mappings.mappers.ditto import CODEC as DITTO
from mappings.mappers.scripts import INCOMING, OUTGOING, Scripts, script
from mappings.model.envelope import Envelope
from mappings.model.signals import Inbound, Outbound
from mappings.options import InvalidMapperOptions, Option, OptionProblem, flag

_LIBRARIES = {"loadLongJS": "long", "loadBytebufferJS": "bytebuffer"}
"""In the order in which they are loaded."""

_EXAMPLE_IN = """\
function mapToDittoProtocolMsg(headers, textPayload) {
  return Ditto.buildDittoProtocolMsg('acme.depot', headers['device'], 'things', 'twin', 'commands', 'modify',
    '/attributes/level', {}, parseFloat(textPayload));
}
"""
_EXAMPLE_OUT = """\
function mapFromDittoProtocolMsg(namespace, name, group, channel, criterion, action, path, headers, value, status) {
  return Ditto.buildExternalMsg({}, `${status}`, null, 'text/plain');
}
"""


class JavaScriptCodec(PayloadMapper):
    """Your own formats: scripts convert between them and the Ditto protocol.

    The incoming script converts a delivery to messages of the Ditto protocol, and the mapper `Ditto` reads these. The
    outgoing script converts messages of `Ditto` to published messages. At least one script is required; a direction without
    a script works as with `Ditto`. [JavaScript](javascript.md) describes functions, helpers and bounds. Scripts are loaded
    when the document is validated.
    """

    options = (
        Option(INCOMING, script, "Maps incoming messages; must define `mapToDittoProtocolMsg`.", _EXAMPLE_IN),
        Option(OUTGOING, script, "Maps outgoing messages; must define `mapFromDittoProtocolMsg`.", _EXAMPLE_OUT),
        Option("loadBytebufferJS", flag, "Whether `dcodeIO.ByteBuffer` is loaded for the scripts.", True, False),
        Option("loadLongJS", flag, "Whether `dcodeIO.Long` is loaded for the scripts.", True, False),
        blocklist(),
    )
    needs_definition = True
    scripts = Scripts()

    def use(self, options: Mapping[str, Any]) -> None:
        libraries = tuple(library for name, library in _LIBRARIES.items() if options.get(name))
        self.scripts = Scripts(options.get(INCOMING) or "", options.get(OUTGOING) or "", libraries)

    def configure(self, options: Mapping[str, Any]) -> Self:
        made = super().configure(options)
        if not made.scripts.sources:
            raise InvalidMapperOptions(
                [OptionProblem((INCOMING,), None, f"a script in {INCOMING}, {OUTGOING} or both")]
            )
        return made

    def decode(self, envelope: Envelope, session: Any) -> Sequence[Inbound]:  # noqa: ARG002
        # The result of a script has no charset.
        return DITTO.decode(Envelope(envelope.payload) if self.scripts.incoming else envelope, None)

    def encode(self, signal: Outbound, session: Any) -> Sequence[Envelope]:  # noqa: ARG002
        return DITTO.encode(signal, None)


CODEC: Codec = JavaScriptCodec()
