"""UpdateTwinWithLiveResponse: merges a device's response to a live retrieve into its twin.

Another mapper, listed beside this one, passes the response on; here it becomes a second signal, a merge of the retrieved
value at the same path. Other messages are ignored, and nothing is written. Ditto connections, payload mapping.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mappings.ditto.messages import MERGE_PATCH
from mappings.errors import DecodeError
from mappings.ids import EntityType
from mappings.mappers.base import HONO_NOTIFICATIONS, Codec, TemplateMapper, blocklist
from mappings.mappers.ditto import CODEC as DITTO
from mappings.model.envelope import Envelope
from mappings.model.headers import normalize
from mappings.model.signals import Command, Inbound, LiveResponse, is_success
from mappings.options import Option, templates
from mappings.placeholders.header_mapping import HeaderMapping
from mappings.placeholders.values import PlaceholderContext

SUFFIX = "-merge-into-twin"


class UpdateTwinWithLiveResponseCodec(TemplateMapper):
    """Merges a device's response to a live retrieve of its thing into the twin, at the same path.

    The merge has the correlation ID of the response with the suffix `-merge-into-twin`. The mapper ignores all other
    messages: list it beside `Ditto`, which passes the response on. The mapper produces no outgoing
    messages.
    """

    options = (
        Option(
            "dittoHeadersForMerge",
            templates,
            "Headers of the merge: an object of names and templates; a header without a value is left out.",
            {"response-required": False, "if-match": "*"},
            {"response-required": False, "if-match": "*"},
        ),
        blocklist(*HONO_NOTIFICATIONS),
    )
    reading: Codec = DITTO
    """The mapper that decodes the responses."""

    def use(self, options: Mapping[str, Any]) -> None:
        self._headers: HeaderMapping = options["dittoHeadersForMerge"]

    def decode_with(self, envelope: Envelope, session: Any, context: PlaceholderContext) -> Sequence[Inbound]:  # noqa: ARG002
        try:
            signals = self.reading.decode(envelope, None)
        except DecodeError:
            return ()
        return [self._merge(signal, context) for signal in signals if _is_retrieved(signal)]

    def _merge(self, response: Any, context: PlaceholderContext) -> Command:
        headers = normalize(self._headers.apply(context), mapped=True)
        headers["content-type"] = MERGE_PATCH
        if (correlation_id := response.headers.get("correlation-id")) is not None:
            headers["correlation-id"] = f"{correlation_id}{SUFFIX}"
        return Command(response.entity, "merge", response.path, response.value, headers)


def _is_retrieved(signal: Inbound) -> bool:
    return (
        isinstance(signal, LiveResponse)
        and signal.entity.type is EntityType.THING
        and signal.action == "retrieve"
        and is_success(signal.status)
        and signal.value is not None
    )


CODEC: Codec = UpdateTwinWithLiveResponseCodec()
