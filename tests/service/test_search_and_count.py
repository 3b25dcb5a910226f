"""Things counted and measured over a real broker, and searched over HTTP and from a shell beside it."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from tests.support.api.canned_server import PROGRAM
from tests.support.broker_setup import MqttSetup
from tests.support.brokers.mosquitto import Mosquitto
from tests.support.clients.mqtt import BrokerClient
from tests.support.connection_documents import READ, policy_for
from tests.support.service_process import ServiceProcess
from tests.support.wait import PATIENCE

pytestmark = pytest.mark.broker("mosquitto")

OWNER, GUEST = "acme:owner", "acme:guest"
ANNA, BERT = "token-of-anna-the-admin", "token-of-bert-who-reads"
TOKENS = [
    {"name": "anna", "token": ANNA, "role": "admin"},
    {"name": "bert", "token": BERT, "role": "read", "subjects": [GUEST]},
]
LAMPS = 30
BY_ROOM = {"groupBy": {"room": "attributes/room"}, "measures": {"all": {"sum": "attributes/n"}}}


def rows(requester: BrokerClient, aggregation: Any) -> list[Any]:
    """Return the rows of an aggregation, requested in pages of two rows."""
    topic = "_/_/things/twin/search"
    value = {"aggregation": aggregation, "options": "size(2)", "namespaces": ["acme.count"]}
    created = requester.ask_for(f"{topic}/subscribe", value=value)
    found: list[Any] = []
    end = time.monotonic() + PATIENCE
    demand = {"subscriptionId": created["value"]["subscriptionId"], "demand": 9}
    requester.command(f"{topic}/request", value=demand, wait=False)
    while time.monotonic() < end:
        event = requester.next()
        if event["topic"].endswith("/complete"):
            return found
        assert event["topic"].endswith("/next"), event
        assert 1 <= len(event["value"]["items"]) <= 2
        found += event["value"]["items"]
    raise AssertionError(f"no end after {found}")


def get(service: ServiceProcess, path: str, token: str, **query: str) -> Any:
    status, body = service.get(f"/api/2/search/things{path}?{urlencode(query)}", token)
    assert status == 200, body
    return json.loads(body)


def test_a_confirmed_change_is_found_by_search_and_count_immediately(mosquitto: Mosquitto, tmp_path: Path) -> None:
    setup = MqttSetup(mosquitto)
    document = setup.connection("site", setup.source("owner", OWNER), setup.source("guest", GUEST))
    with (
        setup.client("owner") as owner,
        setup.client("guest") as guest,
        ServiceProcess.start(tmp_path, [document], api={"tokens": TOKENS}) as service,
    ):
        for number in range(LAMPS):
            readable = {"thing:/attributes/room": READ, "thing:/attributes/ключ": READ}
            readers = {"acme_guest": readable} if number % 3 == 0 else {}
            attributes = {"room": ("attic", "cellar", "hall")[number % 3], "n": number, "ключ": number}
            value = {"_policy": policy_for(OWNER, **readers), "attributes": attributes}
            topic = f"acme.count/lamp-{number:02}/things/twin/commands/create"
            assert owner.ask_for(topic, value=value)["status"] == 201
            query = {"filter": f"eq(attributes/n,{number})", "as": OWNER}
            assert get(service, "/count", ANNA, **query) == 1, "what was answered is found"

        assert rows(owner, BY_ROOM) == [
            {"room": "attic", "count": 10, "all": sum(range(0, LAMPS, 3))},
            {"room": "cellar", "count": 10, "all": sum(range(1, LAMPS, 3))},
            {"room": "hall", "count": 10, "all": sum(range(2, LAMPS, 3))},
        ]
        assert rows(owner, {}) == [{"count": LAMPS}]
        assert rows(guest, BY_ROOM) == [{"room": "attic", "count": 10, "all": 0}]

        found, query = [], {"as": OWNER, "fields": "attributes/n", "option": "size(7),sort(-attributes/n)"}
        while True:
            answer = get(service, "", ANNA, **query)
            found += [thing["attributes"]["n"] for thing in answer["items"]]
            if "cursor" not in answer:
                break
            query["option"] = f"size(7),sort(-attributes/n),cursor({answer['cursor']})"
        assert found == list(range(LAMPS))[::-1]
        shown = get(service, "", BERT, filter='eq(attributes/room,"attic")', option="size(1)")["items"]
        assert shown == [{"thingId": "acme.count:lamp-00", "attributes": {"room": "attic", "ключ": 0}}]

        variables = {"CONNECTIVITY_URL": f"http://127.0.0.1:{service.port}", "CONNECTIVITY_TOKEN": BERT}
        for filter in ('eq(attributes/room,"attic")', "exists(attributes/ключ)"):
            words = (*PROGRAM, "search", filter, "--count", "--json")
            ended = subprocess.run(
                words, env=variables, capture_output=True, encoding="utf-8", timeout=PATIENCE, check=True
            )
            assert json.loads(ended.stdout) == 10
        # The cursor of a process that is no more leads nowhere, and says so.
        cursor = get(service, "", BERT, option="size(1)")["cursor"]
        service.kill()
        service.start_again()
        status, body = service.get(f"/api/2/search/things?option=size(1),cursor({cursor})", BERT)
        assert (status, json.loads(body)["error"]) == (400, "thing-search:search.option.invalid")
        assert get(service, "/count", BERT) == 10
