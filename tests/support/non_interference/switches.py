"""What worlds and questions may have. Each constant admits one class; False leaves it out."""

from __future__ import annotations

from typing import Final

CREATED_AGAIN: Final = False
"""Deleted IDs are created again, perhaps by others."""

COMMANDS_WITHOUT_RIGHTS: Final = False
"""Commands on entities on which the subjects have no right at all."""

GUESSES: Final = False
"""Commands with conditions, entity tags, `if-equal` and metadata headers at places that the subjects may not read."""

POLICY_HISTORY_IN_PARTS: Final = False
"""Histories of policies of which the subjects may read some parts only."""

GRANT_AND_REVOKE_AT_ONE_PATH: Final = False
"""Policies that both grant and revoke a permission at one path."""

NAMES_BEYOND_ASCII: Final = False
"""Searches by names that have other letters than those of ASCII."""
