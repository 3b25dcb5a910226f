"""`connectivity search` against canned answers."""

from __future__ import annotations

import json
from urllib.parse import parse_qs, urlsplit

import pytest
from typer.testing import CliRunner, Result

from connectivity.cli.main import app
from tests.support.api.canned_server import Answers, Canned, ReceivedRequest, Reply, canned, fault

LAMPS = [
    {"thingId": "acme:lamp-7", "attributes": {"room": "hall", "size": 4}},
    {"thingId": "acme:lamp-8", "attributes": {"room": "attic", "tags": [], "site": {}}},
]


class Things(Canned):
    """A fake service that answers search requests with these responses in turn."""

    def __init__(self, *answers: Reply) -> None:
        super().__init__({})
        self._left = list(answers)

    def _answer(self, asked: ReceivedRequest) -> Reply:
        self.requests.append(asked)
        return self._left.pop(0)

    @property
    def queries(self) -> list[dict[str, list[str]]]:
        return [parse_qs(urlsplit(line.removeprefix("GET ")).query, keep_blank_values=True) for line in self.lines]


def run(monkeypatch: pytest.MonkeyPatch, service: Canned, *words: str, code: int = 0) -> Result:
    monkeypatch.setenv("CONNECTIVITY_URL", service.url)
    result = CliRunner().invoke(app, ["search", *words])
    assert result.exit_code == code, result.output
    return result


@pytest.fixture
def things(request: pytest.FixtureRequest) -> object:
    service = Things(*request.param)
    yield service
    service.close()


def answered(*answers: Reply) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("things", [answers], indirect=True, ids=["things"])


@answered(Reply({"items": LAMPS}), Reply({"items": LAMPS}), Reply({"items": LAMPS}))
def test_things_are_shown_as_a_table_of_members_or_of_the_fields_that_were_named(
    monkeypatch: pytest.MonkeyPatch, things: Things
) -> None:
    heading, first, _ = run(monkeypatch, things, 'eq(attributes/room,"hall")').stdout.splitlines()
    assert heading.split() == ["thingId", "attributes"]
    assert first.split(maxsplit=1) == ["acme:lamp-7", '{"room": "hall", "size": 4}']
    result = run(monkeypatch, things, "--fields", "thingId,attributes", "--sort", "-attributes/size,thingId")
    columns, first_row, second_row = (line.split() for line in result.stdout.splitlines())
    assert columns == ["thingId", "attributes/room", "attributes/size", "attributes/tags", "attributes/site"]
    assert first_row == ["acme:lamp-7", "hall", "4", "–", "–"]
    assert second_row == ["acme:lamp-8", "attic", "–", "[]", "{}"]
    assert json.loads(run(monkeypatch, things, "--json").stdout) == LAMPS
    assert things.queries == [
        {"filter": ['eq(attributes/room,"hall")'], "option": ["size(200)"]},
        {"fields": ["thingId,attributes"], "option": ["size(200),sort(-attributes/size,+thingId)"]},
        {"option": ["size(200)"]},
    ]


@answered(Reply({"items": [{"thingId": str(n)} for n in range(200)], "cursor": "abc"}), Reply({"items": LAMPS}))
def test_page_follows_page_to_the_end(monkeypatch: pytest.MonkeyPatch, things: Things) -> None:
    result = run(monkeypatch, things, "--namespace", "acme", "--namespace", "b", "--as", "x", "--as", "y", "--json")
    assert (len(json.loads(result.stdout)), result.stderr) == (202, "")
    common = {"namespaces": ["acme,b"], "as": ["x", "y"]}
    assert things.queries == [common | {"option": ["size(200)"]}, common | {"option": ["size(200),cursor(abc)"]}]


@answered(Reply({"items": LAMPS, "cursor": "abc"}), Reply({"items": LAMPS[:1], "cursor": "abe"}))
def test_only_the_wanted_entries_are_requested_and_further_ones_are_mentioned(
    monkeypatch: pytest.MonkeyPatch, things: Things
) -> None:
    """A page may have fewer things than requested."""
    result = run(monkeypatch, things, "--limit", "3")
    assert len(result.stdout.splitlines()) == 4
    assert result.stderr == "3 things are shown, and more exist; raise --limit to see more\n"
    assert [query["option"] for query in things.queries] == [["size(3)"], ["size(1),cursor(abc)"]]


@answered(Reply({"items": []}), Reply({"items": []}))
def test_an_empty_result_is_a_sentence_or_an_empty_list(monkeypatch: pytest.MonkeyPatch, things: Things) -> None:
    assert run(monkeypatch, things).stdout == "no things\n"
    assert run(monkeypatch, things, "--json").stdout == "[]\n"


@answered(Reply(42), Reply(42))
def test_a_count_is_a_number(monkeypatch: pytest.MonkeyPatch, things: Things) -> None:
    assert run(monkeypatch, things, "exists(attributes/room)", "--count", "--as", "x").stdout == "42\n"
    assert run(monkeypatch, things, "--count", "--json").stdout == "42\n"
    assert things.lines[0] == "GET /api/2/search/things/count?filter=exists%28attributes%2Froom%29&as=x"


PLAN = {"accessPath": "in the order of IDs", "text": "in the order of IDs; 7 things, order +thingId\nevery thing"}


@answered(Reply(PLAN), Reply(PLAN), Reply({"accessPath": "?"}))
def test_a_plan_is_shown_as_text_or_json(monkeypatch: pytest.MonkeyPatch, things: Things) -> None:
    result = run(monkeypatch, things, "exists(attributes/room)", "--sort", "thingId", "--explain")
    assert result.stdout == "in the order of IDs; 7 things, order +thingId\nevery thing\n"
    assert json.loads(run(monkeypatch, things, "--explain", "--json").stdout) == PLAN
    run(monkeypatch, things, "--explain", code=5)
    assert things.queries[0] == {"filter": ["exists(attributes/room)"], "option": ["sort(+thingId)"]}
    assert things.lines[1] == "GET /api/2/search/things/plan"


@pytest.mark.parametrize(
    ("answer", "code", "message"),
    [
        (fault(400, "rql.expression.invalid", "Invalid filter expression: eq("), 1, "Invalid filter expression: eq("),
        (fault(403, "api:subjects.missing", "Your token has no subjects."), 4, "Your token has no subjects."),
        (fault(503, "thing-search:budget.exceeded", "Too long."), 1, "thing-search:budget.exceeded: Too long."),
        (Reply(["x"]), 5, "found a response that does not come from this service"),
        (Reply({"items": [], "cursor": 7}), 5, "found a response that does not come from this service"),
    ],
)
def test_a_failed_search_reports_its_error_and_exits_with_its_code(
    monkeypatch: pytest.MonkeyPatch, answer: Reply, code: int, message: str
) -> None:
    table: dict[str, Answers] = {"GET /api/2/search/things?filter=eq%28&option=size%28200%29": answer}
    with canned(table) as service:
        result = run(monkeypatch, service, "eq(", code=code)
    assert message in result.stderr
    assert result.stdout == ""


def test_a_mark_is_under_the_place_that_is_meant(monkeypatch: pytest.MonkeyPatch) -> None:
    message = "Invalid filter expression: eq(a, 1)\n" + " " * 32 + "^ position 5: expected a number"
    answer = fault(400, "rql.expression.invalid", message, description="Look at it.")
    with canned({"GET /api/2/search/things/count?filter=eq%28a%2C+1%29": answer}) as service:
        result = run(monkeypatch, service, "eq(a, 1)", "--count", code=1)
    assert result.stderr == f"rql.expression.invalid:\n{message}\nLook at it.\n"


def test_a_limit_that_is_invalid_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with canned({}) as service:
        run(monkeypatch, service, "--limit", "0", code=2)
        assert service.requests == []
