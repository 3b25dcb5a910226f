"""The causes of events: headers and labels that targets get with an event."""

from __future__ import annotations

from connectivity.dispatch.command_executor import cause_of, foreign_labels
from spark_store.records import EventCause


def test_case_116_an_event_keeps_custom_headers_and_drops_those_about_the_command() -> None:
    headers = {
        "correlation-id": "c-1",
        "my-header": {"a": 1},
        "traceparent": "00-1",
        "etag": '"x"',
        "condition": "eq(a,1)",
        "if-match": '"y"',
        "if-equal": "skip",
        "reply-to": "here",
        "timeout": "3s",
        "response-required": True,
        "requested-acks": ["twin-persisted", "other:x"],
        "content-type": "application/json",
        "idempotency-key": "k",
        "ditto-originator": "liar",
    }
    cause = cause_of(headers, (), "conn-1", ("acme:owner", "acme:other"))
    assert cause == EventCause(
        "conn-1",
        {
            "correlation-id": "c-1",
            "my-header": {"a": 1},
            "traceparent": "00-1",
            "timeout": "3s",
            "ditto-originator": "acme:owner",
        },
    )


def test_rule_2_6_an_event_that_requests_acknowledgements_has_the_time_within_which_they_count() -> None:
    cause = cause_of({"timeout": 3, "requested-acks": ["other:x"]}, ("other:x",), "conn-1", ())
    assert cause.headers == {"timeout": 3, "requested-acks": ["other:x"]}


def test_case_98_an_event_names_the_labels_that_others_can_give() -> None:
    labels = ("twin-persisted", "other:x", "search-persisted", "other:y")
    assert foreign_labels(labels) == ["other:x", "other:y"]
    assert cause_of({}, labels, "conn-1", ()).headers == {"requested-acks": ["other:x", "other:y"]}
    assert cause_of({"requested-acks": ["other:x"]}, ("twin-persisted",), "conn-1", ()).headers == {}
