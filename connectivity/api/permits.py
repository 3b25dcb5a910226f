"""The connections that the `grants` of a token permit: to send, replace, open, close and delete them."""

from __future__ import annotations

from collections.abc import Iterable

from fastapi import Request

from connectivity.api.authentication import caller_of
from connectivity.api.errors import refusal
from connectivity.config.problems import show
from connectivity.connections.authority import streams_of, subjects_of
from connectivity.connections.model import Connection
from connectivity.management.definition import Permit, permit_all


def permit_of(request: Request) -> Permit:
    """Permit connections whose clients get only subjects that the caller's token may grant.

    They may list a stream only with a policy that a connection lists it with already: its author would decide who uses it.
    """
    caller = caller_of(request)
    if caller.grants is None:
        return permit_all
    expected = f"expected one of: {', '.join(caller.grants) or 'none'}"

    def permit(connection: Connection | None, known: Iterable[Connection]) -> None:
        if connection is None:
            raise refusal(
                "api:subject.forbidden",
                "The stored connection is invalid, so the service cannot compare its subjects with the grants of the token "
                f"'{caller.name}'.",
                "Use a token without 'grants'.",
            )
        for path, subject in subjects_of(connection):
            if not caller.may_grant(subject):
                raise refusal(
                    "api:subject.forbidden",
                    f"{path}: found {show(subject)}, which the 'grants' of the token '{caller.name}' do not include.",
                    expected,
                )
        for path, stream, policy in streams_of(connection):
            if not any((it.stream, it.policy_id) == (stream, policy) for other in known for it in streams_of(other)):
                raise refusal(
                    "api:stream.forbidden",
                    f"{path}: found the policy {show(policy)}, which the token '{caller.name}' may not assign to a stream.",
                    "expected the policy that another connection assigns to this stream",
                )

    return permit
