"""Conversations of two endpoints over faulty wires (`dialog` has the invariants of both).

A few of them always run, the long series as `soak`.
"""

from __future__ import annotations

import hypothesis
import pytest
from hypothesis import HealthCheck, given

from mappings.reactive_streams_io.endpoint import EndpointRole
from mappings.reactive_streams_io.events import Closed, Completed, ElementsReceived, Interrupted, Resumed, StreamFailed
from mappings.reactive_streams_io.frames import Extension
from tests.support.cpu_budget import at_most
from tests.support.dice import examples
from tests.support.reactive_streams_io.faulty_wire import WireFault
from tests.support.reactive_streams_io.two_endpoints import NAMES, Plan, Step, plan, plans, run_plan

LONG = 1.0
"""In seconds of a processor; a conversation takes about two milliseconds."""

ASK = Step(EndpointRole.CLIENT, "subscribe", NAMES.index("tck/range?n=5"), 1)
MORE = Step(EndpointRole.CLIENT, "request", 0, 2)


@pytest.mark.parametrize("sizes", [(), (1,)], ids=["messages", "bytes"])
def test_without_a_mistake_of_the_wire_everything_arrives(sizes: tuple[int, ...]) -> None:
    dialog = run_plan(plan(ASK, Step(EndpointRole.CLIENT, "lose", 1, 0), MORE, sizes=sizes))
    events = [event for side in dialog.sides if side.endpoint.role is EndpointRole.CLIENT for event in side.events]
    elements = [bytes(each) for event in events if isinstance(event, ElementsReceived) for each in event.elements]
    assert elements == [b"1", b"2", b"3", b"4", b"5"]
    assert [type(event) for event in events if isinstance(event, Interrupted | Resumed | Completed | StreamFailed)][
        :3
    ] == [
        Interrupted,
        Resumed,
        Completed,
    ]


def test_a_mistake_of_the_wire_is_found() -> None:
    dialog = run_plan(plan(ASK, to_server=[WireFault(0, "set", 0, 0x55)], sizes=(1000,)))
    (closed, *_) = dialog.side(EndpointRole.SERVER).reported(Closed)
    assert closed.reason.startswith("protocol error: a first frame that is not a hello")


def test_frames_of_a_cancelled_stream_are_sent_again_before_another_stream_uses_its_number() -> None:
    """They are packed for the element size of the first stream, which the peer still knows."""
    client, server = EndpointRole.CLIENT, EndpointRole.SERVER
    steps = (
        Step(server, "subscribe", NAMES.index("tck/range?n=5"), 1, rounds=1),
        Step(server, "lose", 1, rounds=1),
        Step(client, "subscribe", NAMES.index("tck/fixed?n=30&size=2"), 2, rounds=0),
        Step(client, "request", 0, 1),
        Step(client, "cancel", 0, rounds=1),
        Step(client, "subscribe", NAMES.index("tck/range?n=0"), 0),
        Step(server, "lose", 2, rounds=0),
    )
    # This fault keeps the client from receiving the last frames.
    back = [WireFault(17, "double", 41_792, 92)]
    dialog = run_plan(Plan(frozenset({Extension.RESUME, Extension.KEEPALIVE}), list(steps), [], back, [7]))
    assert len([event for side in dialog.sides for event in side.reported(Resumed)]) == 4


@given(plans)
@hypothesis.settings(max_examples=examples(300), suppress_health_check=list(HealthCheck))
def test_over_a_bad_wire_a_conversation_continues_or_ends_and_leaves_nothing(plan: Plan) -> None:
    with at_most(LONG):
        run_plan(plan)


@pytest.mark.soak(shard="properties")
@given(plans)
@hypothesis.settings(max_examples=examples(100_000), suppress_health_check=list(HealthCheck))
def test_a_hundred_thousand_conversations_over_bad_wires(plan: Plan) -> None:
    with at_most(LONG):
        run_plan(plan)
