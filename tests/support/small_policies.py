"""Policies with a few rules for three subjects."""

from __future__ import annotations

from collections.abc import Sequence

from tests.support.oracles.permissions import Policy

A, B, C = "edge:a", "edge:b", "edge:c"


def a_policy(*rules: tuple[Sequence[str], str, Sequence[str], Sequence[str]]) -> Policy:
    """Return a policy with one entry per rule: subjects, resource, granted, revoked."""
    return {
        "entries": {
            f"E{number}": {
                "subjects": {subject: {"type": "test"} for subject in subjects},
                "resources": {resource: {"grant": list(granted), "revoke": list(revoked)}},
            }
            for number, (subjects, resource, granted, revoked) in enumerate(rules)
        }
    }
