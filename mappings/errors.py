"""The errors between bytes and signals, as one tree with the root MappingError.

Every error that may reach a client carries a `Fault`: the four members of an error response. Clients branch on `status`;
tests and operators read `error`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from mappings.ids import EntityId


@dataclass(frozen=True, slots=True)
class Fault:
    """The reason of a failure, as an error response contains it.

    `status` is an HTTP status, `error` a code such as `things:thing.notfound`; `extra` has further members of the error
    object, such as `href` or `invalidHeaderKey`, as JSON values.
    """

    status: int
    error: str
    message: str
    description: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)


INTERNAL_ERROR = Fault(
    500,
    "internalerror",
    "An unexpected internal error occurred.",
    "Please contact the service team or your administrator.",
)


class MappingError(Exception):
    """The root of this package's errors."""

    retry: ClassVar[bool] = False

    def __init__(self, fault: Fault) -> None:
        super().__init__(f"{fault.error}: {fault.message}")
        self.fault = fault

    @property
    def status(self) -> int:
        return self.fault.status


class DecodeError(MappingError):
    """An envelope that cannot be decoded.

    The parts decoded before the error are kept to address the response: the entity of the topic, the group (`things` or
    `policies`), the channel (`twin` or `live`) and the headers.
    """

    def __init__(
        self,
        fault: Fault,
        *,
        entity: EntityId | None = None,
        group: str = "things",
        headers: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__(fault)
        self.entity = entity
        self.group = group
        self.channel = "twin"
        self.headers: Mapping[str, object] = headers or {}


class UnknownTopic(DecodeError):
    """`protocoladapter:unknown.topicpath`."""


class UnknownPath(DecodeError):
    """`protocoladapter:unknown.path`."""


class ProtocolError(DecodeError):
    """Bytes of reactive-streams-io after which the conversation cannot continue.

    The message is the reason of the goodbye.
    """


class UnsupportedVersion(ProtocolError):
    """A hello in a version of reactive-streams-io that is not spoken here."""


class EncodeError(MappingError):
    """A signal that this wire protocol cannot express."""


MAPPING_FAILED = "connectivity:message.mapping.failed"
"""The code for a message that a payload mapper can make nothing of."""


def mapping_failed(message: str, description: str | None = None) -> Fault:
    """The fault of a message that a payload mapper can make nothing of."""
    return Fault(400, MAPPING_FAILED, message, description)


class PlaceholderError(MappingError):
    """The root of errors in `{{ … }}` expressions."""


class UnknownPlaceholder(PlaceholderError):
    """`placeholder:unresolved`: no placeholder has this name."""


class UnknownFunction(PlaceholderError):
    """`placeholder:function.unknown`."""


class InvalidSignature(PlaceholderError):
    """`placeholder:function.signature.invalid` or `placeholder:function.too.complex`."""


class Unresolved(PlaceholderError):
    """`placeholder:unresolved`: a required value is missing."""


class UnsafeAddress(PlaceholderError):
    """`connectivity:message.sending.failed` (400): a value that an address cannot contain."""


class AddressNotAllowed(UnsafeAddress):
    """`connectivity:message.sending.failed` (400): an address that the operator's pattern does not allow."""
