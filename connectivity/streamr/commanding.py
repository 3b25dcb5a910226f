"""What is published to a thing or a policy: a command of the Ditto protocol, carried out like any other (Streamr, names).

Whoever follows the twin is sent the event that comes of it; the publisher hears of it only where it fails, in an error frame
with the command's own error. Nobody can be told more in this protocol, so what a command asks for besides, answers and
acknowledgements, it does not get.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from connectivity.arrivals import Named
from connectivity.desks.base import Errand
from connectivity.lanes import Ended
from connectivity.streamr.lines import Line
from connectivity.twins.streams import Permit
from mappings.codecs import load_codec
from mappings.ids import EntityId, new_correlation_id
from mappings.signals import ErrorResponse, Headers, Response
from mappings.streamr.faults import About
from mappings.streamr.frames import error_of
from mappings.streamr.requests import Publish
from mappings.streamr.twins import command_of

_UNANSWERABLE = frozenset({"requested-acks", "response-required", "reply-to", "live-channel-condition"})
"""What a command says about its answers."""

_CORRELATION_ID = "correlation-id"


def errand_of(
    request: Publish, entity: EntityId, permit: Permit, headers: Headers, named: Named, line: Line | None
) -> Errand:
    """The command that is published to a twin. `headers` are those of the request. Raises RequestRefused."""
    read = partial(load_codec("Ditto").decode, session=None)
    command = command_of(request, entity, read)
    own = {name: value for name, value in command.headers.items() if name not in _UNANSWERABLE}
    completed: Mapping[str, Any] = {
        **own,
        _CORRELATION_ID: own.get(_CORRELATION_ID) or headers.get(_CORRELATION_ID) or new_correlation_id(),
        "ditto-originator": permit.subjects[0],
        "response-required": False,
    }
    return Errand(replace(command, headers=completed), permit.subjects, _own(named), partial(_told, request, line))


def _own(named: Named) -> Named:
    """A name of its own for what a client has named: a message under the same name is kept with another kind of answer."""
    if named.name is None or not named.is_chosen:
        return named
    return named._replace(name=named.name._replace(name=f"{named.name.name}:command"))


def _told(request: Publish, line: Line | None, answer: Response | ErrorResponse, ended: Ended) -> None:
    """What came of a command: a success needs no words."""
    if line is None or not isinstance(answer, ErrorResponse):
        ended(None)
    else:
        line.say(error_of(answer.fault, About(request.stream), line.correlation_id), ended)
