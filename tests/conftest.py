"""Fixtures that all tests share, how tests are spread over workers, and what ends a test that hangs."""

from __future__ import annotations

import asyncio
import gc
import os
import re
import signal
import sys
from collections.abc import Callable, Generator, Iterator
from typing import TypeVar

import hypothesis
import pytest
from xdist.workermanage import WorkerController

from connectivity.config.extras import Extra, extra_of
from tests.support.brokers import BrokerFailed
from tests.support.brokers.kafka import Kafka
from tests.support.brokers.mosquitto import Mosquitto
from tests.support.brokers.rabbitmq import RabbitMQ
from tests.support.brokers.shared import STARTS, BrokerServer, RemoteBrokers, SharedBrokers, Source
from tests.support.clock import Clock
from tests.support.dice import SEED, THOROUGH, examples
from tests.support.open_files import open_files
from tests.support.watchdog import Watchdog

# How long an example takes says more about the machine than about the code.
hypothesis.settings.register_profile("any machine", deadline=None, max_examples=examples(100))
hypothesis.settings.load_profile("any machine")

SLOW = 10.0
"""Seconds after which a test must give a reason: `@pytest.mark.slow(reason="…")`."""

OWN = {
    "own_mosquitto": "own_mosquitto",
    "own_rabbitmq": "own_rabbitmq",
    "own_kafka": "own_kafka",
    "quiet_rabbitmq": "own_rabbitmq",
    "quiet_kafka": "own_kafka",
}
"""Fixtures of brokers that one worker has for itself, and the group of tests that uses them there."""

MOST_OPEN_FILES = 512
"""How many files tests may leave open: their MQTT clients wait by `select`, which fails for numbers above 1023."""

LONGEST_FIRST = ("tests/lake/", "tests/service/", "tests/links/", "tests/contract/")

_watchdog = pytest.StashKey[Watchdog]()
_brokers = pytest.StashKey[Source]()
_shared = pytest.StashKey[SharedBrokers]()
_server = pytest.StashKey[BrokerServer]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini(
        "hang_seconds", "seconds that a test may take before the run shows all stacks and ends", default="600"
    )


def pytest_report_header() -> str:
    return f"seed: {SEED} (the same again: SEED={SEED}), {'all' if THOROUGH else 'a fifth of the'} random examples"


def pytest_xdist_auto_num_workers() -> int:
    """Two more than there are cores: much of the time a test waits for a broker or a service."""
    return (os.cpu_count() or 1) + 2


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    # Output of a test is captured while it runs; the stacks of one that hangs are written where nothing is captured.
    output = os.fdopen(os.dup(sys.__stderr__.fileno() if sys.__stderr__ else 2), "w")
    config.stash[_watchdog] = Watchdog(output)
    # Otherwise asyncio makes a loop when the first test gets the current one, which is lost, unclosed, at the next run.
    asyncio.set_event_loop(None)
    if config.getoption("hypothesis_seed", None) is None:
        config.option.hypothesis_seed = SEED
    if (worker := getattr(config, "workerinput", None)) is not None:
        number = int(worker["workerid"].removeprefix("gw"))
        config.stash[_brokers] = RemoteBrokers(worker["brokers_address"], worker["brokers_key"], number)
        return
    config.stash[_shared] = config.stash[_brokers] = SharedBrokers(int(config.getoption("numprocesses", None) or 1))
    # A shell that starts a run in the background has it ignore SIGINT, and so would the programs that tests interrupt.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: WorkerController) -> None:
    """Tell a worker where the brokers are."""
    stash = node.config.stash
    if _server not in stash:
        stash[_server] = BrokerServer(stash[_shared])
    node.workerinput.update(brokers_address=stash[_server].address, brokers_key=stash[_server].key)


def pytest_unconfigure(config: pytest.Config) -> None:
    gc.unfreeze()
    if _server in config.stash:
        config.stash[_server].close()
    if _brokers in config.stash:
        config.stash[_brokers].close()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Group the tests of a module, of Spark and of each private broker; put the longest ones first."""
    items[:] = [item for item in items if all(Extra(it.args[0]).is_installed for it in item.iter_markers("extra"))]
    for item in items:
        if item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(_group(item)))
    items.sort(key=_rank)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Leave out the tests of an extra that this environment does not have."""
    report = yield
    missing = re.search(r"ModuleNotFoundError: No module named '([\w.]+)'", str(report.longrepr))
    if missing is not None and extra_of(missing[1]) is not None:
        report.outcome, report.longrepr, report.result = "passed", None, []
    return report


def _group(item: pytest.Item) -> str:
    if item.get_closest_marker("spark") is not None:
        return "spark"
    if own := OWN.keys() & set(getattr(item, "fixturenames", ())):
        return min(OWN[name] for name in own)
    return item.nodeid.partition("::")[0].removeprefix("tests/").removesuffix(".py")


def _rank(item: pytest.Item) -> int:
    if item.get_closest_marker("spark") is not None:
        return -1
    for rank, folder in enumerate(LONGEST_FIRST):
        if item.nodeid.startswith(folder):
            return rank
    return len(LONGEST_FIRST)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Leave the millions of objects that collecting makes out of every search for garbage: they all stay."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_finish(session: pytest.Session) -> None:
    """Brokers start while the first tests run."""
    used = {name for item in session.items for name in getattr(item, "fixturenames", ())}
    if needed := used & STARTS.keys():
        session.config.stash[_brokers].prepare(sorted(needed))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    watchdog = item.config.stash[_watchdog]
    watchdog.watch(f"{item.nodeid} (SEED={SEED})", float(item.config.getini("hang_seconds")))
    try:
        return (yield)
    finally:
        watchdog.rest()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown() -> None:
    if (count := len(open_files())) > MOST_OPEN_FILES:
        pytest.fail(f"found {count} open files, expected at most {MOST_OPEN_FILES}: tests do not close what they open")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Show the seed after a failure, and name slow tests that give no reason."""
    if terminalreporter.stats.get("failed"):
        terminalreporter.write_line(f"the same random values again: SEED={SEED}")
    reports = [report for key in ("passed", "failed") for report in terminalreporter.stats.get(key, [])]
    slow = [each for each in reports if each.when == "call" and each.duration > SLOW and "slow" not in each.keywords]
    for report in sorted(slow, key=lambda each: -each.duration):
        terminalreporter.write_line(f"above {SLOW:g} s without a reason: {report.duration:.1f} s {report.nodeid}")


@pytest.fixture
def clock() -> Clock:
    return Clock()


Wanted = TypeVar("Wanted", Mosquitto, RabbitMQ, Kafka)


def _get(config: pytest.Config, name: str, kind: type[Wanted]) -> Wanted:
    try:
        broker = config.stash[_brokers].get(name)
    except BrokerFailed as error:
        pytest.fail(str(error), pytrace=False)
    assert isinstance(broker, kind)
    return broker


@pytest.fixture(scope="session")
def mosquitto(pytestconfig: pytest.Config) -> Mosquitto:
    """One broker for the tests of a worker that neither stop it nor need a special configuration."""
    return _get(pytestconfig, "mosquitto", Mosquitto)


@pytest.fixture(scope="session")
def rabbitmq(pytestconfig: pytest.Config) -> RabbitMQ:
    """Yield one broker for all tests that neither stop it nor need a special configuration.

    Use queues of your own. Besides `/` it has the virtual host `fleet`, and besides its own a user `stranger` without
    permissions. Its certificate is for `localhost`.
    """
    return _get(pytestconfig, "rabbitmq", RabbitMQ)


@pytest.fixture(scope="session")
def kafka(pytestconfig: pytest.Config) -> Kafka:
    """One broker for all tests that do not stop it, with users and TLS. Use topics and groups of your own."""
    return _get(pytestconfig, "kafka", Kafka)


def _own(start: Callable[[], Wanted]) -> Iterator[Wanted]:
    try:
        broker = start()
    except BrokerFailed as error:
        pytest.fail(f"needs a broker that could not be started: {str(error).splitlines()[0]}", pytrace=False)
    with broker:
        yield broker


def _running(broker: Wanted) -> Wanted:
    if not broker.is_running():
        broker.start_again()
    return broker


@pytest.fixture(scope="session")
def _own_mosquitto() -> Iterator[Mosquitto]:
    yield from _own(Mosquitto.start)


@pytest.fixture(scope="session")
def _own_rabbitmq() -> Iterator[RabbitMQ]:
    yield from _own(lambda: RabbitMQ.start(vhosts=["fleet"]))


@pytest.fixture(scope="session")
def _own_kafka() -> Iterator[Kafka]:
    yield from _own(Kafka.start)


@pytest.fixture(scope="module")
def quiet_rabbitmq(_own_rabbitmq: RabbitMQ) -> RabbitMQ:
    """A broker that no other test uses meanwhile, so that all its messages can be observed."""
    return _running(_own_rabbitmq)


@pytest.fixture(scope="module")
def quiet_kafka(_own_kafka: Kafka) -> Kafka:
    """A broker that no other test uses meanwhile, so that all its messages can be observed."""
    return _running(_own_kafka)


@pytest.fixture
def own_mosquitto(_own_mosquitto: Mosquitto) -> Mosquitto:
    """A broker that the test may stop, kill and start again; it runs when the test begins."""
    return _running(_own_mosquitto)


@pytest.fixture
def own_rabbitmq(_own_rabbitmq: RabbitMQ) -> RabbitMQ:
    """A broker that the test may stop, kill and start again; it runs when the test begins."""
    return _running(_own_rabbitmq)


@pytest.fixture
def own_kafka(_own_kafka: Kafka) -> Kafka:
    """A broker that the test may stop, kill and start again; it runs when the test begins."""
    return _running(_own_kafka)
