"""The scripts of a payload mapper in the script process of its connection: envelopes in, envelopes out.

Around them is the Ditto protocol: it reads what incoming scripts return and writes what outgoing scripts are given. A
direction without a script passes envelopes on as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from connectivity.errors import ScriptFailed
from connectivity.scripts.host import ScriptHost
from mappings.envelope import Envelope
from mappings.errors import DecodeError, EncodeError
from mappings.scripted import (
    Scripts,
    incoming_argument,
    incoming_envelopes,
    outgoing_argument,
    outgoing_envelopes,
    script_failed,
)


class HostedScripts:
    """The scripts of one definition on one connection."""

    def __init__(self, scripts: Scripts, host: ScriptHost) -> None:
        self._has_incoming, self._has_outgoing = bool(scripts.incoming), bool(scripts.outgoing)
        self._host = host
        self._scripts = host.scripts(scripts.sources, scripts.libraries)

    def __repr__(self) -> str:
        return f"<HostedScripts at {self._host!r}>"

    async def incoming(self, envelope: Envelope) -> Sequence[Envelope]:
        """The messages of the Ditto protocol that a delivery's envelope means; none where it is dropped.

        Raises DecodeError (`connectivity:message.mapping.failed`).
        """
        if not self._has_incoming:
            return (envelope,)
        try:
            results = await self._host.call(self._scripts, "incoming", partial(incoming_argument, envelope))
        except ScriptFailed as error:
            raise DecodeError(script_failed(str(error))) from error
        return incoming_envelopes(results, envelope)

    async def outgoing(self, envelopes: Sequence[Envelope]) -> Sequence[Envelope]:
        """What is published for messages of the Ditto protocol, in their order. Raises EncodeError, likewise."""
        if not self._has_outgoing:
            return envelopes
        made: list[Envelope] = []
        try:
            for envelope in envelopes:
                results = await self._host.call(self._scripts, "outgoing", partial(outgoing_argument, envelope))
                made += outgoing_envelopes(results)
        except ScriptFailed as error:
            raise EncodeError(script_failed(str(error))) from error
        return made
