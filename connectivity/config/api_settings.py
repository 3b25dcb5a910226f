"""The settings of the HTTP API: its address, its tokens and their roles."""

from __future__ import annotations

import ipaddress
import re
from datetime import timedelta
from enum import Enum
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, ByteSize, Field, SecretStr, model_validator
from pydantic_settings import NoDecode

from connectivity.config.quantities import SIZE, WHOLE, Listed, Positive, PositiveDuration
from connectivity.config.section import Section
from mappings.texts import lower_text

SHORTEST_TOKEN = 16
"""Characters of a token, where others than this machine can guess it."""

_UNSENDABLE = re.compile(r"\A |[\x00-\x1f\x7f]| \Z")
"""Control characters, and spaces at the ends: a header cannot carry them."""

_NAME = re.compile(r"[A-Za-z0-9._@-]{1,64}")
_ALL_OF_NAMESPACE = ":*"
_HOST_NAME = re.compile(r"(?:\*\.)?[A-Za-z0-9_](?:[A-Za-z0-9_.-]*[A-Za-z0-9_])?")
_GRANT = re.compile(r"[^\s*{}$]+(?::\*)?")


class TokenRole(str, Enum):
    """The role of a token. Each role includes those before it."""

    READ = "read"
    WRITE = "write"
    ADMIN = "admin"

    def may(self, needed: TokenRole) -> bool:
        """Whether this role includes `needed`."""
        order = list(TokenRole)
        return order.index(self) >= order.index(needed)


def _check_name(name: str) -> str:
    if _NAME.fullmatch(name) is None:
        raise ValueError("1 to 64 letters, digits and the characters . _ - @")
    return name


def _check_token(token: SecretStr) -> SecretStr:
    if _UNSENDABLE.search(token.get_secret_value()) is not None:
        raise ValueError("a token without line ends and other control characters, and without spaces at its ends")
    return token


Token = Annotated[SecretStr, AfterValidator(_check_token)]
"""A bearer token."""


def _check_token_length(token: SecretStr) -> SecretStr:
    if len(token) < SHORTEST_TOKEN:
        raise ValueError(f"a token of at least {SHORTEST_TOKEN} characters")
    return token


def _check_grant(subject: str) -> str:
    # Placeholders would be compared with those of a document as they are written.
    if _GRANT.fullmatch(subject) is None:
        raise ValueError(
            f"a subject such as acme:fleet, or all subjects of a namespace such as acme{_ALL_OF_NAMESPACE}"
        )
    return subject


Grant = Annotated[str, AfterValidator(_check_grant)]
"""A subject that a token may grant, or all subjects with a prefix."""


class ApiToken(Section):
    """A token of the HTTP API."""

    name: Annotated[str, AfterValidator(_check_name)] = Field(description="The name of the token in the audit log.")
    token: Annotated[Token, AfterValidator(_check_token_length)] = Field(description="At least 16 characters.")
    role: Annotated[TokenRole, BeforeValidator(lower_text)] = Field(
        default=TokenRole.READ, description="`read`, `write` or `admin`."
    )
    subjects: tuple[str, ...] = Field(
        default=(), description="Authorization subjects that searches with this token have."
    )
    grants: tuple[Grant, ...] | None = Field(
        default=None,
        description="For the role `write`: the subjects of the connections that this token may create, change, open and "
        "delete; `acme:*` is every subject that begins with `acme:`. Default: all.",
    )

    @model_validator(mode="after")
    def _check_grants(self) -> ApiToken:
        if self.grants is not None and self.role is not TokenRole.WRITE:
            raise ValueError(f"grants only with the role write; this token has the role {self.role.value}")
        return self


def check_distinct_tokens(tokens: tuple[ApiToken, ...]) -> tuple[ApiToken, ...]:
    """The tokens, if no two share a name or a secret. Raises ValueError."""
    if len({it.name for it in tokens}) < len(tokens) or len({it.token.get_secret_value() for it in tokens}) < len(
        tokens
    ):
        raise ValueError("every token with its own name and its own value")
    return tokens


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a listener on `host`."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _check_host_name(name: str) -> str:
    if _HOST_NAME.fullmatch(name) is None:
        raise ValueError("a host name such as connectivity.acme.example, or *.acme.example, without a port")
    return name.lower()


HostName = Annotated[str, AfterValidator(_check_host_name)]


class ApiSettings(Section):
    """The address of the HTTP API, and its tokens."""

    host: Annotated[str, Field(min_length=1)] = Field(
        default="127.0.0.1", description="Address to listen on; an address other than loopback requires a token."
    )
    port: Annotated[int, Field(ge=0, le=65_535), WHOLE] = Field(
        default=8080, description="Port to listen on; 0 selects a free port and logs it."
    )
    hosts: Annotated[tuple[HostName, ...], NoDecode, Listed] = Field(
        default=(),
        description="Names that the header `Host` of a request may have, such as that of a proxy; `*.acme.example` "
        "means every name below `acme.example`. Loopback names, `api.host` and, with a token, IP addresses are "
        "always allowed.",
    )
    token: Token | None = Field(
        default=None,
        description="Bearer token with the role `admin`; at least 16 characters, except if `host` is loopback.",
    )
    tokens: Annotated[tuple[ApiToken, ...], AfterValidator(check_distinct_tokens)] = Field(
        default=(),
        description="Further tokens: a list of `{name, token, role, subjects, grants}`; `role` is `read` (the default), "
        "`write` or `admin`. See [Authorization](api.md#authorization).",
    )
    max_body: Annotated[ByteSize, Field(ge=1), SIZE] = Field(
        default=ByteSize(1024 * 1024), description="Largest request body, in bytes."
    )
    read_timeout: PositiveDuration = Field(
        default=timedelta(seconds=10),
        description="How long the head of a request, and then its body, may take to arrive, and how long an HTTP "
        "connection stays open without a request.",
    )
    max_clients: Positive = Field(default=500, description="Maximum number of open HTTP connections.")

    @property
    def needs_token(self) -> bool:
        """Whether all but probes require a token. An empty token is treated as none: it would admit everyone."""
        return bool(self.tokens or (self.token and self.token.get_secret_value()))

    @model_validator(mode="after")
    def _require_token_unless_loopback(self) -> ApiSettings:
        if is_loopback(self.host):
            return self
        if not self.needs_token:
            raise ValueError("api.token or api.tokens, because api.host is not a loopback address")
        if self.token and 0 < len(self.token) < SHORTEST_TOKEN:
            raise ValueError(
                f"api.token of at least {SHORTEST_TOKEN} characters, because api.host is not a loopback address"
            )
        return self
