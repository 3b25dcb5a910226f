"""Those who may use the HTTP API: the tokens of `api.tokens`, and what each lets its bearer do."""

from __future__ import annotations

import re
from enum import Enum
from typing import Annotated

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, SecretStr

from mappings.texts import lowered

_SHORTEST_TOKEN = 16
_NAME = re.compile(r"[A-Za-z0-9._@-]{1,64}")


class Role(str, Enum):
    """What a token lets its bearer do. Each may what those before it may."""

    READ = "read"
    WRITE = "write"
    ADMIN = "admin"

    def may(self, needed: Role) -> bool:
        """Whether this role is enough where `needed` is asked for."""
        order = list(Role)
        return order.index(self) >= order.index(needed)


def _plain(name: str) -> str:
    if _NAME.fullmatch(name) is None:
        raise ValueError("1 to 64 letters, digits and the characters . _ - @")
    return name


def _hard_to_guess(token: SecretStr) -> SecretStr:
    if len(token) < _SHORTEST_TOKEN:
        raise ValueError(f"a token of at least {_SHORTEST_TOKEN} characters")
    return token


class ApiToken(BaseModel):
    """One of those who may use the HTTP API."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    name: Annotated[str, AfterValidator(_plain)] = Field(description="Who that is; the audit log says so.")
    token: Annotated[SecretStr, AfterValidator(_hard_to_guess)] = Field(description="At least 16 characters.")
    role: Annotated[Role, BeforeValidator(lowered)] = Field(
        default=Role.READ, description="`read`, `write` or `admin`."
    )
    subjects: tuple[str, ...] = Field(
        default=(), description="Authorization subjects in whose name things are searched."
    )


def unlike(tokens: tuple[ApiToken, ...]) -> tuple[ApiToken, ...]:
    """The tokens, if no two share a name or a secret. Raises ValueError."""
    if len({it.name for it in tokens}) < len(tokens) or len({it.token.get_secret_value() for it in tokens}) < len(
        tokens
    ):
        raise ValueError("each name and each token once")
    return tokens
