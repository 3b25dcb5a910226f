"""The shape of the project, held by reading its files: who imports whom, what each module brings along.

The tables below are the architecture. A new module finds its place in them, or the tests say which one is missing.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

import pytest

from tests.support.paths import ROOT

PACKAGES = ("connectivity", "mappings", "spark_store")

CORE = (
    "mappings.envelope",
    "mappings.errors",
    "mappings.ids",
    "mappings.metadata",
    "mappings.pointer",
    "mappings.signals",
    "mappings.texts",
    "mappings.time_placeholder",
    "mappings.topic",
)
"""The nouns that all three packages share, the two small grammars (pointers, times) that filters need too, and how texts
are cut."""

LAYERS: dict[str, tuple[tuple[str, ...], ...]] = {
    "mappings": (
        ("mappings", *CORE),
        (
            "mappings.resolution",
            "mappings.separators",
            "mappings.unheard",
            "mappings.formats",
            "mappings.selection",
            "mappings.content_types",
        ),
        ("mappings.placeholder_values",),
        ("mappings.functions",),
        ("mappings.placeholders",),
        ("mappings.headers", "mappings.addresses", "mappings.reference"),
        ("mappings.options",),
        ("mappings.scripted",),
        ("mappings.ditto", "mappings.ditto.*"),
        ("mappings.streamr", "mappings.streamr.*"),
        ("mappings.reactive_streams_io", "mappings.reactive_streams_io.*"),
        ("mappings.codecs", "mappings.codecs.*", "mappings.mappers_page"),
    ),
    "spark_store": (
        (
            "spark_store",
            "spark_store.errors",
            "spark_store.instants",
            "spark_store.records",
            "spark_store.sql",
            "spark_store.tables",
            "spark_store.whole",
        ),
        (
            "spark_store.asking",
            "spark_store.named",
            "spark_store.replay",
            "spark_store.partial",
            "spark_store.rql",
            "spark_store.rql.*",
            "spark_store.batch",
            "spark_store.scratch",
            "spark_store.session",
        ),
        ("spark_store.aggregation", "spark_store.folding"),
        (
            "spark_store.faults",
            "spark_store.migrations",
            "spark_store.index",
            "spark_store.connect",
            "spark_store.erasure",
            "spark_store.definitions",
            "spark_store.desk_sessions",
            "spark_store.due",
            "spark_store.following",
            "spark_store.published",
            "spark_store.recalling",
        ),
        (
            "spark_store.watermark",
            "spark_store.failure",
            "spark_store.durable",
            "spark_store.indexing",
            "spark_store.spool",
        ),
        ("spark_store.journal", "spark_store.journal.*", "spark_store.follower"),
        ("spark_store.scanning", "spark_store.cold"),
        ("spark_store.planning", "spark_store.picture"),
        ("spark_store.by_ids",),
        ("spark_store.reaching",),
        ("spark_store.judging",),
        ("spark_store.walking",),
        ("spark_store.history", "spark_store.search", "spark_store.lake", "spark_store.memory"),
        ("spark_store.lake_check",),
        ("spark_store.lag",),
        ("spark_store.lake_status",),
        ("spark_store.wide", "spark_store.selection", "spark_store.output"),
        ("spark_store.export", "spark_store.asof"),
        (
            "spark_store.backup",
            "spark_store.folding",
            "spark_store.index_check",
            "spark_store.lake_rows",
            "spark_store.rebuild",
            "spark_store.verify",
        ),
        ("spark_store.pipeline", "spark_store.pipeline.*"),
    ),
    "connectivity": (
        (
            "connectivity",
            "connectivity.errors",
            "connectivity.uri",
            "connectivity.hosts",
            "connectivity.masking",
            "connectivity.topics",
            "connectivity.conversation",
            "connectivity.manual",
            "connectivity.inquiry",
            "connectivity.management",
            "connectivity.tags",
            "connectivity.tokens",
        ),
        (
            "connectivity.lifecycle",
            "connectivity.subscription",
            "connectivity.lock",
            "connectivity.logs",
            "connectivity.tls",
        ),
        ("connectivity.model",),
        (
            "connectivity.rules",
            "connectivity.secrets",
            "connectivity.documents",
            "connectivity.quantities",
            "connectivity.brokers.base",
        ),
        ("connectivity.vault", "connectivity.scripts", "connectivity.scripts.*"),
        ("connectivity.mapper", "connectivity.dialing"),
        (
            "connectivity.amqp",
            "connectivity.amqp.*",
            "connectivity.kafka",
            "connectivity.kafka.*",
            "connectivity.mqtt",
            "connectivity.mqtt.*",
            "connectivity.doors",
            "connectivity.doors.*",
        ),
        ("connectivity.tcp", "connectivity.tcp.*", "connectivity.websocket", "connectivity.websocket.*"),
        ("connectivity.brokers", "connectivity.brokers.*"),
        (
            "connectivity.spec",
            "connectivity.spec.*",
            "connectivity.settings",
            "connectivity.settings_page",
            "connectivity.keys",
            "connectivity.files",
            "connectivity.carried",
            "connectivity.differences",
        ),
        ("connectivity.lifetimes",),
        ("connectivity.folder", "connectivity.refusals", "connectivity.watching"),
        ("connectivity.monitoring", "connectivity.monitoring.*"),
        (
            "connectivity.monitor",
            "connectivity.tracing",
            "connectivity.lanes",
            "connectivity.outbox",
            "connectivity.feeds",
            "connectivity.acknowledgements",
            "connectivity.publication",
        ),
        ("connectivity.twins", "connectivity.twins.*"),
        (
            "connectivity.authorities",
            "connectivity.cache",
            "connectivity.decided",
            "connectivity.tail",
            "connectivity.kept",
            "connectivity.submitted",
            "connectivity.enrichment",
            "connectivity.happening",
        ),
        ("connectivity.interest",),
        ("connectivity.pages",),
        ("connectivity.store", "connectivity.history", "connectivity.searching", "connectivity.streams"),
        ("connectivity.following", "connectivity.published"),
        ("connectivity.aggregating",),
        ("connectivity.inquiring",),
        (
            "connectivity.outbound",
            "connectivity.inbound",
            "connectivity.trimming",
            "connectivity.past",
            "connectivity.desk_sessions",
        ),
        ("connectivity.targets", "connectivity.arrivals", "connectivity.rehearsal", "connectivity.subscriptions"),
        ("connectivity.desks.base", "connectivity.lines", "connectivity.judging"),
        ("connectivity.streamr", "connectivity.streamr.*"),
        ("connectivity.reactive_streams_io", "connectivity.reactive_streams_io.*"),
        ("connectivity.desks", "connectivity.desks.*"),
        (
            "connectivity.members",
            "connectivity.collecting",
            "connectivity.expiry",
            "connectivity.causes",
            "connectivity.cursor",
        ),
        ("connectivity.cursors",),
        ("connectivity.live", "connectivity.replies", "connectivity.announcing", "connectivity.promises"),
        ("connectivity.exchange",),
        ("connectivity.steps",),
        ("connectivity.commands",),
        ("connectivity.dispatch",),
        ("connectivity.intake",),
        ("connectivity.client", "connectivity.trial"),
        ("connectivity.standings",),
        (
            "connectivity.supervisor",
            "connectivity.definitions",
            "connectivity.registry",
            "connectivity.pipeline",
            "connectivity.wide",
            "connectivity.export",
            "connectivity.backup",
            "connectivity.erasing",
            "connectivity.indexing",
            "connectivity.rotating",
        ),
        ("connectivity.rebuild", "connectivity.observing", "connectivity.asof"),
        ("connectivity.managing",),
        ("connectivity.api", "connectivity.api.*"),
        ("connectivity.metrics",),
        ("connectivity.service",),
        ("connectivity.cli", "connectivity.cli.*", "connectivity.__main__"),
    ),
}
"""Lowest first. A module imports from its own layer and those below it."""

ACROSS = {
    "mappings": (),
    "spark_store": ("mappings", *CORE),
    "connectivity": ("mappings", "mappings.*", "spark_store", "spark_store.*"),
}
"""What a package may import of the other two."""

NEVER = (
    # Definitions and the sans-IO machines know nothing of loops, brokers' files, or the store.
    ("connectivity.lifecycle", ("asyncio", "spark_store*", "connectivity.brokers*")),
    ("connectivity.subscription", ("asyncio", "spark_store*", "connectivity.brokers*")),
    ("connectivity.acknowledgements", ("asyncio", "spark_store*")),
    ("connectivity.model", ("asyncio", "spark_store*", "connectivity.brokers*")),
    ("connectivity.twins*", ("asyncio", "connectivity.brokers*", "connectivity.store")),
    ("mappings*", ("asyncio", "threading", "socket")),
    ("spark_store*", ("asyncio",)),
    # A broker moves envelopes; what they mean is decided above it.
    ("connectivity.brokers*", ("mappings.codecs*", "mappings.signals", "spark_store*")),
    ("connectivity.mqtt*", ("mappings.codecs*", "mappings.signals", "spark_store*")),
    ("connectivity.amqp*", ("mappings.codecs*", "mappings.signals", "spark_store*")),
    ("connectivity.kafka*", ("mappings.codecs*", "mappings.signals", "spark_store*")),
    ("connectivity.doors*", ("mappings.codecs*", "mappings.signals", "spark_store*")),
    ("connectivity.tcp*", ("mappings.codecs*", "mappings.signals", "spark_store*")),
    ("connectivity.websocket*", ("mappings.codecs*", "mappings.signals", "spark_store*")),
    # A script process loads no more than it needs.
    ("connectivity.scripts.worker", ("asyncio", "mappings*", "connectivity.errors", "structlog")),
    ("connectivity.scripts.sandbox", ("asyncio", "mappings*", "connectivity.errors", "structlog")),
    ("connectivity.scripts.calls", ("asyncio",)),
    ("connectivity.inbound", ("spark_store*",)),
    ("connectivity.outbound", ("spark_store*",)),
    # The shell talks to the HTTP API, and the API to the registry.
    (
        "connectivity.api*",
        (
            "connectivity.brokers.*",
            "connectivity.amqp*",
            "connectivity.kafka*",
            "connectivity.mqtt*",
            "connectivity.doors*",
            "connectivity.tcp*",
            "connectivity.websocket*",
            "spark_store.journal*",
        ),
    ),
    (
        "connectivity.cli.*",
        (
            "connectivity.brokers*",
            "connectivity.amqp*",
            "connectivity.kafka*",
            "connectivity.mqtt*",
            "connectivity.doors*",
            "connectivity.tcp*",
            "connectivity.websocket*",
            "connectivity.supervisor",
            "spark_store*",
        ),
    ),
)
"""Module pattern → what it must not import, whatever the layers would allow."""

LIBRARIES = {
    "paho": ("connectivity.brokers.mqtt*", "connectivity.mqtt.*"),
    "aio_pika": ("connectivity.brokers.amqp*", "connectivity.amqp.*"),
    "aiormq": ("connectivity.brokers.amqp*", "connectivity.amqp.*"),
    "pamqp": ("connectivity.brokers.amqp*", "connectivity.amqp.*"),
    "websockets": ("connectivity.websocket.*",),
    "confluent_kafka": ("connectivity.brokers.kafka", "connectivity.kafka.*"),
    "_quickjs": ("connectivity.scripts.sandbox",),
    "quickjs": (),
    "cbor2": ("connectivity.reactive_streams_io.encoding",),
    "pyspark": ("spark_store.pipeline*", "spark_store.session", "spark_store.wide"),
    "py4j": ("spark_store.pipeline*", "spark_store.session"),
    "deltalake": ("spark_store.lake", "spark_store.lake_rows", "spark_store.scanning"),
    "pyarrow": (
        "spark_store.lake",
        "spark_store.lake_check",
        "spark_store.lake_rows",
        "spark_store.scanning",
        "spark_store.cold",
        "spark_store.pipeline*",
        "spark_store.wide",
        "spark_store.export",
        "spark_store.output",
        "spark_store.recalling",
    ),
    "sqlite3": ("spark_store.*",),
    "adbc_driver_sqlite": ("spark_store.pipeline.columns",),
    "adbc_driver_manager": ("spark_store.pipeline.columns",),
    "fastapi": ("connectivity.api*",),
    "starlette": ("connectivity.api*",),
    "uvicorn": ("connectivity.api.server",),
    "h11": ("connectivity.api.server",),
    "httpx": ("connectivity.cli*",),
    "typer": ("connectivity.cli*",),
    "rich": ("connectivity.cli*",),
    "cryptography": ("connectivity.vault", "connectivity.inquiring"),
    "opentelemetry": ("connectivity.tracing",),
    "prometheus_client": ("connectivity.monitor", "connectivity.api*"),
    "pydantic_settings": ("connectivity.settings",),
}
"""A library → the only files that import it. Tests, benchmarks and examples are free."""

STORE_OPENERS = (
    "connectivity.store",
    "connectivity.history",
    "connectivity.following",
    "connectivity.searching",
    "connectivity.trimming",
    "connectivity.past",
    "connectivity.service",
    "connectivity.pipeline",
    "connectivity.metrics",
    "connectivity.rebuild",
    "connectivity.wide",
    "connectivity.asof",
    "connectivity.export",
    "connectivity.backup",
    "connectivity.definitions",
    "connectivity.desk_sessions",
    "connectivity.erasing",
    "connectivity.indexing",
    "connectivity.rotating",
    "connectivity.tail",
    "connectivity.kept",
)
"""The only ones that see journal, history, search or lake; the rest of the package knows records, errors and rql."""

STORE_NOUNS = (
    "spark_store.aggregation",
    "spark_store.asking",
    "spark_store.errors",
    "spark_store.records",
    "spark_store.replay",
    "spark_store.partial",
    "spark_store.rql*",
)

THIRD_PARTY_ALLOWED = {"mappings": ("msgspec",)}
"""Packages that stand on the standard library, and what else they may have."""


def module_name(file: Path) -> str:
    """`connectivity/brokers/__init__.py` → `connectivity.brokers`."""
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(file): file for package in PACKAGES for file in sorted((ROOT / package).rglob("*.py"))}


@cache
def tree_of(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"), str(file))


@cache
def imports_of(name: str) -> frozenset[str]:
    """The modules that a module imports, each as the most precise module that is meant."""
    file = MODULES[name]
    package = name if file.name == "__init__.py" else name.rpartition(".")[0]
    found: set[str] = set()
    for node in ast.walk(tree_of(file)):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) + 1 - node.level] if node.level else []
            base = ".".join([*above, node.module] if node.module else above)
            for alias in node.names:
                inner = f"{base}.{alias.name}"
                found.add(inner if inner in MODULES else base)
    return frozenset(found - {name})


def matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def layer_of(name: str) -> int | None:
    """The number of a module's layer: an exact name counts before a pattern."""
    layers = LAYERS[name.partition(".")[0]]
    exact = [number for number, layer in enumerate(layers) if name in layer]
    loose = [number for number, layer in enumerate(layers) if matches(name, layer)]
    return next(iter(exact + loose), None)


def test_every_module_is_in_a_layer() -> None:
    assert MODULES
    assert [name for name in MODULES if layer_of(name) is None] == []


def test_modules_import_from_their_own_layer_and_below() -> None:
    assert [problem for name in MODULES for problem in wrong_imports(name)] == []


def wrong_imports(name: str) -> Iterator[str]:
    """The imports of a module from a layer above its own, or across packages where that is not allowed."""
    own, package = layer_of(name), name.partition(".")[0]
    for imported in sorted(imports_of(name)):
        other = imported.partition(".")[0]
        if other == package:
            layer = layer_of(imported)
            if own is None or layer is None or layer > own:
                yield f"{name} imports {imported}, which is in layer {layer}, above {own}"
        elif other in PACKAGES and not matches(imported, ACROSS[package]):
            yield f"{name} imports {imported}: {package} must not"


@pytest.mark.parametrize(("pattern", "forbidden"), NEVER, ids=[pattern for pattern, _ in NEVER])
def test_a_module_keeps_away_from_what_is_none_of_its_business(pattern: str, forbidden: tuple[str, ...]) -> None:
    found = {
        (name, imported)
        for name in MODULES
        if fnmatchcase(name, pattern)
        for imported in imports_of(name)
        # A broker's own folder is not forbidden to itself.
        if matches(imported, forbidden) and not fnmatchcase(imported, pattern)
    }
    assert found == set()


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_library_is_imported_in_its_own_files_alone(library: str) -> None:
    importers = {name for name in MODULES if library in {found.partition(".")[0] for found in imports_of(name)}}
    assert {name for name in importers if not matches(name, LIBRARIES[library])} == set()


def test_only_a_few_see_the_store_itself() -> None:
    found = {
        (name, imported)
        for name in MODULES
        if name.startswith("connectivity") and not matches(name, STORE_OPENERS)
        for imported in imports_of(name)
        if imported.startswith("spark_store") and not matches(imported, STORE_NOUNS)
    }
    assert found == set()


def test_mappings_stand_on_the_standard_library_and_the_json_codec() -> None:

    for package, allowed in THIRD_PARTY_ALLOWED.items():
        for name in MODULES:
            if name.partition(".")[0] == package:
                roots = {found.partition(".")[0] for found in imports_of(name)}
                assert roots <= {*sys.stdlib_module_names, *PACKAGES, *allowed}, name


def test_nobody_imports_a_broker_or_a_codec_by_name() -> None:
    """They are loaded by the name in a connection document, so that a new one is one new file."""
    for loader in ("connectivity.brokers", "mappings.codecs"):
        for name in MODULES:
            direct = {
                found for found in imports_of(name) if found.startswith(f"{loader}.") and found != f"{loader}.base"
            }
            # MQTT 5 extends MQTT 3.1.1: a broker's file may build on its sibling.
            assert direct == set() or name.startswith(f"{loader}."), name


def test_every_module_has_a_docstring() -> None:
    assert [str(file.relative_to(ROOT)) for file in MODULES.values() if not ast.get_docstring(tree_of(file))] == []
