"""Conversations with the session handler over faulty wires (invariants: `conversation_service`).

A few of them always run, the long series as `soak`.
"""

from __future__ import annotations

import gc
import weakref

import hypothesis
import pytest
from hypothesis import HealthCheck, Phase, given

from connectivity.sessions.reactive_streams_io.peer import PeerSession
from mappings.reactive_streams_io.endpoint import Endpoint
from mappings.reactive_streams_io.frames import Extension
from tests.support.cpu_budget import at_most
from tests.support.dice import examples
from tests.support.in_process.faulty_conversations import NAMES, ConversationService, Plan, Step, plans
from tests.support.reactive_streams_io.faulty_wire import WireFault

LONG = 5.0
"""In seconds of a processor; a conversation takes some twenty milliseconds."""

FOUND_AS_IT_IS = (Phase.explicit, Phase.reuse, Phase.generate)
"""A failing plan is not shrunk, because each try would wait for a frame that never comes."""

QUIET: list[list[WireFault]] = [[], []]


def series(count: int) -> None:
    """Run `count` random conversations with one session handler."""
    with ConversationService() as conversation_service:

        @given(plans)
        @hypothesis.settings(max_examples=count, suppress_health_check=list(HealthCheck), phases=FOUND_AS_IT_IS)
        def each(plan: Plan) -> None:
            with at_most(LONG):
                conversation_service.hold(plan)

        each()


def test_over_a_bad_wire_sessions_continue_or_end_and_leave_nothing() -> None:
    series(examples(200))


@pytest.mark.soak(shard="properties")
def test_a_hundred_thousand_conversations_with_the_handler_over_bad_wires() -> None:
    series(examples(100_000))


def test_the_conversation_check_detects_a_faulty_session_handler(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = Plan(frozenset(Extension), [Step(0, "subscribe", NAMES.index("tck/never"), 0)], QUIET, QUIET)
    with ConversationService() as conversation_service:
        conversation_service.hold(plan)
        monkeypatch.setattr(PeerSession, "lose", lambda _: ())
        monkeypatch.setattr(Endpoint, "tick", lambda _self, _now: [])
        with pytest.raises(AssertionError):
            conversation_service.hold(plan)
        monkeypatch.undo()
        conversation_service.hold(plan)


def test_a_departed_client_leaves_no_reference_to_its_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """No object refers to a client that the session handler has removed."""
    made: weakref.WeakSet[PeerSession] = weakref.WeakSet()
    build = PeerSession.__init__

    def note(self: PeerSession, *args: object, **options: object) -> None:
        made.add(self)
        build(self, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(PeerSession, "__init__", note)
    steps = [Step(0, what, which, 4) for which, what in enumerate(("subscribe", "gone", "subscribe", "elsewhere"))]
    with ConversationService() as conversation_service:
        for _ in range(5):
            conversation_service.hold(Plan(frozenset(Extension), steps * 2, QUIET, QUIET))
        gc.collect()
        assert list(made) == []
