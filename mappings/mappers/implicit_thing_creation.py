"""ImplicitThingCreation: creates a thing for every device behind a gateway.

Each delivery becomes a command that creates the thing of the template unless it exists; another mapper, listed after this
one, reads the payload. The gateway gets no response if the thing exists; other errors are logged for the operator. Ditto
connections, payload mapping.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mappings.ditto import errors
from mappings.ditto.messages import json_bytes
from mappings.errors import DecodeError, EncodeError, Fault
from mappings.ids import EntityType, parse_entity_id
from mappings.mappers.base import Codec, TemplateMapper, blocklist, require
from mappings.model.envelope import Envelope
from mappings.model.headers import normalize
from mappings.model.signals import Command, ErrorResponse, Inbound, Outbound
from mappings.options import InvalidMapperOption, JsonTemplate, Option, OptionProblem, flag, json_template, templates
from mappings.placeholders.header_mapping import HeaderMapping
from mappings.placeholders.template import Template
from mappings.placeholders.values import PlaceholderContext

CREATE_ONLY = {"if-none-match": "*"}
"""The headers of a command that carries nothing out where the thing is there."""

_ALREADY_EXISTS = frozenset(
    {(409, "things:thing.conflict"), (412, "things:precondition.failed"), (400, "things:thing.notcreatable")}
)
"""The errors for an existing thing; the last one if its policy, which is created first, exists too."""


def _thing(value: object) -> JsonTemplate:
    """The template of a thing: an object with at least an id that can be one."""
    if not isinstance(value, dict):
        raise InvalidMapperOption(OptionProblem((), value, "an object, which is the thing to create"))
    id = value.get("thingId")
    if not isinstance(id, str):
        raise InvalidMapperOption(OptionProblem(("thingId",), id, "the id of the thing, or a template for it"))
    found = json_template(value)
    if not isinstance(found["thingId"], Template) and parse_entity_id(EntityType.THING, id) is None:
        raise InvalidMapperOption(
            OptionProblem(("thingId",), id, "an id such as acme.depot:truck-19, or a template for it")
        )
    return found


class ImplicitThingCreationCodec(TemplateMapper):
    """Creates a thing for the device of a delivery, unless the thing exists.

    This mapper never reads the payload: list it before the mapper that reads the payload. The gateway gets no message if
    the thing already exists. The service logs any other error. The mapper produces no outgoing messages.
    """

    options = (
        Option(
            "thing",
            _thing,
            "The thing to create: JSON with at least `thingId`. Every text in it may be a template; if one has no "
            "value, the delivery gets an error response. `policyId`, `_policy` and `_copyPolicyFrom` select its policy.",
            {"thingId": "{{ header:device_id }}", "_copyPolicyFrom": "acme.depot:devices"},
            is_required=True,
        ),
        Option(
            "commandHeaders",
            templates,
            "Headers of the command: an object of names and templates; a header without a value is left out. By "
            "default, `if-none-match` is `*` and `requested-acks` is empty, so that the delivery is not rejected if "
            "the thing exists.",
            {"if-none-match": "*", "origin": "{{ header:gateway_id }}"},
            CREATE_ONLY,
        ),
        Option(
            "allowPolicyLockout",
            flag,
            "Whether the thing's policy may leave no subject with the permission to change it.",
            False,
            True,
        ),
        blocklist(),
    )
    needs_definition = True

    def use(self, options: Mapping[str, Any]) -> None:
        self._thing: JsonTemplate | None = options.get("thing")
        self._headers = options.get("commandHeaders") or HeaderMapping({})
        self._allows_lockout = bool(options.get("allowPolicyLockout"))

    def decode_with(self, envelope: Envelope, session: Any, context: PlaceholderContext) -> Sequence[Inbound]:  # noqa: ARG002
        if self._thing is None:
            return ()
        thing = _fill(self._thing, context)
        entity = parse_entity_id(EntityType.THING, thing["thingId"])
        if entity is None:
            raise DecodeError(errors.invalid_id("things", thing["thingId"]))
        own = {**CREATE_ONLY, **self._headers.apply(context)}
        # An existing thing must not reject the delivery.
        headers = {"requested-acks": [], **normalize(own, mapped=True), "allow-policy-lockout": self._allows_lockout}
        return (Command(entity, "create", "/", json_bytes(thing), headers),)

    def encode(self, signal: Outbound, session: Any) -> Sequence[Envelope]:  # noqa: ARG002
        if isinstance(signal, ErrorResponse):
            fault = signal.fault
            if (fault.status, fault.error) not in _ALREADY_EXISTS:
                message = f"The thing was not created: {fault.error}: {fault.message}"
                raise EncodeError(Fault(500, "internalerror", message))
        return ()


def _fill(template: JsonTemplate, context: PlaceholderContext) -> Any:
    """Return the JSON value of a template. Raises Unresolved."""
    if isinstance(template, Template):
        return require(template, context)
    if isinstance(template, dict):
        return {name: _fill(member, context) for name, member in template.items()}
    if isinstance(template, list):
        return [_fill(member, context) for member in template]
    return template


CODEC: Codec = ImplicitThingCreationCodec()
