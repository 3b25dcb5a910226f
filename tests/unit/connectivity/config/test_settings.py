"""The settings: file, variables, problems."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path

import pytest

from connectivity.config.api_settings import ApiSettings
from connectivity.config.settings import RetentionSetting, Settings, SparkMode
from connectivity.config.settings_loader import load_settings
from connectivity.errors import SettingsError
from connectivity.security.egress import EgressRules

SECRET = "s3cr3t-word"
API = ", ".join(ApiSettings.model_fields)


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.upper().startswith("CONNECTIVITY_"):
            monkeypatch.delenv(name)


def problems(file: Path | None = None) -> list[str]:
    with pytest.raises(SettingsError) as raised:
        load_settings(file)
    return str(raised.value).splitlines()


def written(folder: Path, text: str) -> Path:
    file = folder / "settings.yaml"
    file.write_text(text, encoding="utf-8")
    return file


@pytest.mark.extra("spark")
def test_design_7_and_8_the_defaults() -> None:
    found = load_settings()
    assert (found.connections_dir, found.data_dir) == (Path("connections"), Path("data"))
    assert (found.api.host, found.api.port, found.api.token) == ("127.0.0.1", 8080, None)
    assert (found.journal.retention, found.journal.redelivery_window) == (timedelta(days=7), timedelta(minutes=10))
    assert (found.journal.historical_headers, found.lake.retention.default) == ((), RetentionSetting())
    subscriptions = found.subscriptions
    assert (subscriptions.idle_timeout, subscriptions.after_life) == (timedelta(seconds=60), timedelta(seconds=10))
    assert (subscriptions.open_timeout, subscriptions.max_per_user) == (timedelta(seconds=15), 10_000)
    assert (subscriptions.page_items, subscriptions.page_bytes) == (500, 1024 * 1024)
    assert (found.reconnect.min, found.reconnect.max) == (timedelta(seconds=0.5), timedelta(seconds=30))
    assert (found.limits.payload, found.log.format, found.log.level) == (1024 * 1024, "text", "info")
    assert (found.spark.mode, found.spark.master, found.spark.remote) == (SparkMode.EMBEDDED, "local[*]", None)


def test_a_file_sets_and_a_variable_has_priority(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = written(tmp_path, "api: {port: 1, token: x}\ndata_dir: /a\nlog: {level: DEBUG}\n")
    monkeypatch.setenv("CONNECTIVITY_API__PORT", "2")
    monkeypatch.setenv("CONNECTIVITY_CONNECTIONS_DIR", "/c")
    monkeypatch.setenv("CONNECTIVITY_JOURNAL__HISTORICAL_HEADERS", "a, b")
    found = load_settings(file)
    assert (found.api.port, str(found.data_dir), str(found.connections_dir)) == (2, "/a", "/c")
    assert found.api.token is not None
    assert (found.api.token.get_secret_value(), found.log.level) == ("x", "debug")
    assert found.journal.historical_headers == ("a", "b")


def test_an_empty_variable_is_treated_as_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONNECTIVITY_API__TOKEN", "")
    monkeypatch.setenv("CONNECTIVITY_API__PORT", "")
    assert load_settings().api.port == 8080


def test_an_empty_group_or_file_changes_nothing(tmp_path: Path) -> None:
    assert load_settings(written(tmp_path, "api: {}\n")) == load_settings()


def test_retention_is_set_by_default_and_by_namespace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "lake: {retention: {default: 30d, acme.site: forever, acme.test: 1d}}\n"
    retention = load_settings(written(tmp_path, text)).lake.retention
    assert (retention.of("acme.site"), retention.of("acme.test")) == (
        RetentionSetting(),
        RetentionSetting(days=timedelta(days=1)),
    )
    assert retention.of("another") == RetentionSetting(days=timedelta(days=30))
    monkeypatch.setenv("CONNECTIVITY_LAKE__RETENTION", "90d")
    assert load_settings().lake.retention.of("acme.site") == RetentionSetting(days=timedelta(days=90))
    assert load_settings(written(tmp_path, "lake: {retention: 5d}\n")).lake.retention.of("x").days == timedelta(days=90)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{revisions: 1000}", RetentionSetting(revisions=1000)),
        ("{days: 30, revisions: 1000}", RetentionSetting(days=timedelta(days=30), revisions=1000)),
        ("{default: {days: 0.5}}", RetentionSetting(days=timedelta(hours=12))),
        ("forever", RetentionSetting()),
    ],
)
def test_retention_takes_days_revisions_or_both(text: str, expected: RetentionSetting, tmp_path: Path) -> None:
    assert load_settings(written(tmp_path, f"lake: {{retention: {text}}}\n")).lake.retention.default == expected


@pytest.mark.parametrize("namespace", ["", "days", "0x5a/sensors", "room 7"])
def test_any_namespace_of_things_or_streams_may_have_a_retention_rule(namespace: str, tmp_path: Path) -> None:
    retention = load_settings(
        written(tmp_path, f"lake: {{retention: {{'{namespace}': 1d, acme: 2d}}}}\n")
    ).lake.retention
    assert retention.of(namespace) == RetentionSetting(days=timedelta(days=1))


@pytest.mark.parametrize(
    "text",
    ["{days: 30, acme: forever}", "{acme: 1d, revisions: 5}", "{days: 0.5, default: 1d}", "{days: '30 ', acme: 1d}"],
)
def test_limits_of_one_retention_rule_beside_namespaces_are_refused(text: str, tmp_path: Path) -> None:
    """A namespace can be called days, but no rule is 30 seconds."""
    file = written(tmp_path, f"lake: {{retention: {text}}}\n")
    (problem,) = problems(file)
    assert problem.startswith(
        f"lake.retention ({file}): found an object, expected a rule for each namespace and default"
    )
    assert problem.endswith("are the limits of one rule: {default: {days: 30}, acme: forever}")


def test_variables_for_limits_and_namespaces_of_retention_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONNECTIVITY_LAKE__RETENTION__DAYS", "30")
    monkeypatch.setenv("CONNECTIVITY_LAKE__RETENTION__ACME", "forever")
    (problem,) = problems()
    assert "expected a rule for each namespace and default" in problem


def test_an_environment_variable_sets_retention_in_days_and_revisions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONNECTIVITY_LAKE__RETENTION__ACME__DAYS", "30")
    monkeypatch.setenv("CONNECTIVITY_LAKE__RETENTION__ACME__REVISIONS", "7")
    assert load_settings().lake.retention.of("acme") == RetentionSetting(days=timedelta(days=30), revisions=7)


@pytest.mark.parametrize("name", ["DEFAULT", "ACME"])
@pytest.mark.parametrize("text", ["30d", '{"days": 30}'])
def test_an_environment_variable_sets_one_rule_of_retention(
    name: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"CONNECTIVITY_LAKE__RETENTION__{name}", text)
    assert load_settings().lake.retention.rules[name.lower()] == RetentionSetting(days=timedelta(days=30))


@pytest.mark.parametrize("rule", ["30d", "{days: 30}", "{default: 30d}", """'{"default": "30d"}'"""])
def test_a_variable_for_a_namespace_leaves_the_default_retention_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rule: str
) -> None:
    monkeypatch.setenv("CONNECTIVITY_LAKE__RETENTION__ACME", "forever")
    retention = load_settings(written(tmp_path, f"lake: {{retention: {rule}}}\n")).lake.retention
    assert (retention.of("other").days, retention.of("acme").days) == (timedelta(days=30), None)


def test_an_environment_variable_sets_retention_as_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONNECTIVITY_LAKE__RETENTION", '{"days": 30, "revisions": 7}')
    assert load_settings().lake.retention.default == RetentionSetting(days=timedelta(days=30), revisions=7)
    monkeypatch.setenv("CONNECTIVITY_LAKE__RETENTION", '{"default": "90d", "acme.site": {"revisions": 7}}')
    retention = load_settings().lake.retention
    assert (retention.default.days, retention.of("acme.site").revisions) == (timedelta(days=90), 7)
    monkeypatch.setenv("CONNECTIVITY_LAKE__RETENTION", '{"acme": "soon"}')
    (problem,) = problems()
    assert problem.startswith('lake.retention.acme (CONNECTIVITY_LAKE__RETENTION): found "soon", expected a duration')
    monkeypatch.setenv("CONNECTIVITY_LAKE__RETENTION", '{"acme": "3d"')
    (problem,) = problems()
    assert problem.startswith('lake.retention.default (CONNECTIVITY_LAKE__RETENTION): found "{')


@pytest.mark.parametrize(
    ("text", "setting", "problem"),
    [
        ("{default: {weeks: 3}}", "lake.retention.default.weeks", "expected one of: days, revisions"),
        ("{acme: {revisions: 0}}", "lake.retention.acme.revisions", "found 0, expected at least 1"),
        ("{acme: {days: -1}}", "lake.retention.acme.days", "found -1, expected a number of days above 0"),
        ("{acme: {}}", "lake.retention.acme", "or an object with days, revisions or both"),
        ("{acme: 0s}", "lake.retention.acme", 'found "0s", expected a duration above 0, or forever'),
        ("0", "lake.retention.default", "found 0, expected a duration above 0, or forever"),
        (
            "{'acme:lamp': 1d}",
            'lake.retention["acme:lamp"]',
            'found "acme:lamp", expected a namespace, which has no colon',
        ),
        ("{acme: soon}", "lake.retention.acme", 'found "soon", expected a duration such as 30d, forever, or an object'),
    ],
)
def test_an_invalid_retention_rule_is_reported_with_the_expected_form(
    text: str, setting: str, problem: str, tmp_path: Path
) -> None:
    (found,) = problems(written(tmp_path, f"lake: {{retention: {text}}}\n"))
    assert found.startswith(f"{setting} (")
    assert problem in found


def test_forever_is_no_end(tmp_path: Path) -> None:
    assert load_settings(written(tmp_path, "journal: {retention: forever}\n")).journal.retention is None


@pytest.mark.parametrize("word", ["off", "'off'", "OFF", "false"])
def test_off_in_yaml_is_the_text_off(tmp_path: Path, word: str) -> None:
    assert load_settings(written(tmp_path, f"spark: {{mode: {word}}}\n")).spark.mode is SparkMode.OFF


# --- problems -----------------------------------------------------------------------------------------------------------


def test_every_problem_names_its_setting_and_where_it_came_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = written(
        tmp_path,
        "api: {prot: 5}\nlog: {format: jsn}\njournal: {redelivery_window: soon}\nsubscriptions: {page_items: 0}\n"
        "reconect: {}\nlimits: {payload: 1 barrel}\n",
    )
    monkeypatch.setenv("CONNECTIVITY_API__PORT", "eighty")
    monkeypatch.setenv("connectivity_spark__mode", "embeded")
    found = problems(file)
    assert found == [
        f"reconect ({file}): found an unknown setting, expected one of: {', '.join(Settings.model_fields)} "
        "(did you mean reconnect?)",
        'api.port (CONNECTIVITY_API__PORT): found "eighty", expected a whole number',
        f"api.prot ({file}): found an unknown setting, expected one of: {API} (did you mean port?)",
        f'journal.redelivery_window ({file}): found "soon", expected a duration with one of the units '
        "ms, s, m, h, d, w, such as 10m",
        f"subscriptions.page_items ({file}): found 0, expected at least 1",
        f'limits.payload ({file}): found "1 barrel", expected a size such as 512KiB or 1MiB',
        'spark.mode (connectivity_spark__mode): found "embeded", expected one of: embedded, external, off '
        "(did you mean embedded?)",
        f'log.format ({file}): found "jsn", expected one of: text, json (did you mean json?)',
    ]


@pytest.mark.parametrize(
    ("name", "hint"),
    [("CONNECTIVITY_DATADIR", "(did you mean data_dir?)"), ("CONNECTIVITY_APPI__PORT", "(did you mean api?)")],
)
def test_a_variable_that_is_nearly_a_setting_is_a_problem(
    name: str, hint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "1")
    assert [line.endswith(hint) and name in line for line in problems()] == [True]


def test_an_unknown_nested_variable_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONNECTIVITY_API__PROT", "1")
    assert problems() == [
        f"api.prot (CONNECTIVITY_API__PROT): found an unknown setting, expected one of: {API} (did you mean port?)"
    ]


def test_a_variable_below_a_path_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONNECTIVITY_DATA_DIR__JOURNAL", "/srv")
    expected = "expected CONNECTIVITY_DATA_DIR, because data_dir is one path"
    assert problems() == [f"CONNECTIVITY_DATA_DIR__JOURNAL: found an unknown variable, {expected}"]


@pytest.mark.parametrize("setting", ["api.token", "log.format", "journal.redelivery_window"])
def test_a_variable_with_one_underscore_between_levels_is_a_problem(
    setting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without `api.token`, everyone on the machine can use the API."""
    name = f"CONNECTIVITY_{setting.replace('.', '_').upper()}"
    monkeypatch.setenv(name, "a-secret-value")
    expected = f"CONNECTIVITY_{setting.replace('.', '__').upper()}"
    assert problems() == [f"{name}: found an unknown variable, expected {expected}"]


def test_variables_that_a_cluster_sets_are_no_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster's services connectivity and connectivity-api announce themselves to every container by such names."""
    for name in ("SERVICE_HOST", "PORT", "PORT_8080_TCP_ADDR"):
        monkeypatch.setenv(f"CONNECTIVITY_{name}", "10.0.0.1")
    for name in ("API_PORT", "API_PORT_8080_TCP"):
        monkeypatch.setenv(f"CONNECTIVITY_{name}", "tcp://10.0.0.1:8080")
    monkeypatch.setenv("CONNECTIVITY_API_SERVICE_HOST", "10.0.0.1")
    assert load_settings().api.port == 8080


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.1", "connectivity.example", "128.0.0.1"])
def test_a_host_that_others_reach_needs_a_token(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONNECTIVITY_API__HOST", host)
    assert problems() == [
        "api (CONNECTIVITY_API__HOST): found a host that is not loopback, and no token or a short one, expected "
        "api.token or api.tokens, because api.host is not a loopback address"
    ]
    monkeypatch.setenv("CONNECTIVITY_API__TOKEN", "a-token-that-is-long-enough")
    assert load_settings().api.host == host


def test_a_host_that_others_reach_needs_a_token_that_cannot_be_guessed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONNECTIVITY_API__HOST", "0.0.0.0")
    for length in (1, 15):
        monkeypatch.setenv("CONNECTIVITY_API__TOKEN", "x" * length)
        (problem,) = problems()
        assert problem.endswith(
            "expected api.token of at least 16 characters, because api.host is not a loopback address"
        )
        assert "xx" not in problem
    monkeypatch.setenv("CONNECTIVITY_API__TOKEN", "x" * 16)
    assert load_settings().api.needs_token
    monkeypatch.setenv("CONNECTIVITY_API__HOST", "localhost")
    monkeypatch.setenv("CONNECTIVITY_API__TOKEN", "x")
    assert load_settings().api.needs_token


def test_names_of_the_header_host_are_a_list_in_lower_case(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONNECTIVITY_API__HOSTS", "A.example, *.b.example")
    assert load_settings().api.hosts == ("a.example", "*.b.example")


@pytest.mark.parametrize("host", ["a.example:8080", "http://a.example", "*", "a*.example", "-", ""])
def test_a_host_name_with_anything_else_is_a_problem(tmp_path: Path, host: str) -> None:
    (problem,) = problems(written(tmp_path, f"api: {{hosts: ['{host}']}}\n"))
    assert "expected a host name such as connectivity.acme.example, or *.acme.example, without a port" in problem


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.1", "::1", "localhost"])
def test_loopback_needs_no_token(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONNECTIVITY_API__HOST", host)
    assert load_settings().api.token is None


@pytest.mark.parametrize("setting", ["reconnect: {min: 999999999999w}", "journal: {retention: 999999999999w}"])
def test_a_duration_beyond_all_measure_is_a_problem(tmp_path: Path, setting: str) -> None:
    assert 'found "999999999999w", expected a shorter duration' in problems(written(tmp_path, setting + "\n"))[0]


@pytest.mark.parametrize(
    ("text", "setting"),
    [
        ("spark: {memory: 1\u0665m}", "spark.memory"),
        ("spark: {master: 'local[\u0664]'}", "spark.master"),
        ("limits: {payload: \u0665MiB}", "limits.payload"),
        ("limits: {payload: '\u0665'}", "limits.payload"),
        ("lake: {retention: {days: '\u0663'}}", "lake.retention.default.days"),
        ("journal: {retention: \u0667d}", "journal.retention"),
        ("api: {port: '\u0668\u0660'}", "api.port"),
        ("tracing: {ratio: '\u0660'}", "tracing.ratio"),
        ("search: {workers: '1_0'}", "search.workers"),
        ("api: {port: '8_080'}", "api.port"),
        ("lake: {retention: {days: '1_0'}}", "lake.retention.default.days"),
        ("limits: {payload: '1_0'}", "limits.payload"),
    ],
)
def test_numbers_have_the_digits_from_0_to_9(text: str, setting: str, tmp_path: Path) -> None:
    file = written(tmp_path, text)
    (problem,) = problems(file)
    assert problem.startswith(f"{setting} ({file}): found ")


@pytest.mark.parametrize("text", ["1,048,576", "1.5.7MiB", "1MiB/s", "1 MiB 512 KiB", "true"])
def test_a_size_is_a_number_with_at_most_a_unit(text: str, tmp_path: Path) -> None:
    file = written(tmp_path, f"limits: {{payload: {text!r}}}")
    assert problems(file) == [f'limits.payload ({file}): found "{text}", expected a size such as 512KiB or 1MiB']


@pytest.mark.parametrize("value", ["-1", "1.5", "null", ".inf", "[]"])
def test_a_size_is_expected_in_place_of_other_values(value: str, tmp_path: Path) -> None:
    [problem] = problems(written(tmp_path, f"limits: {{payload: {value}}}"))
    assert problem.endswith(", expected a size such as 512KiB or 1MiB")


@pytest.mark.parametrize("name", ["idle_timeout", "open_timeout"])
def test_a_subscription_has_some_time(tmp_path: Path, name: str) -> None:
    file = written(tmp_path, f"subscriptions: {{{name}: 0}}\n")
    assert problems(file) == [f"subscriptions.{name} ({file}): found 0, expected a duration above 0"]


@pytest.mark.parametrize("value", ["12", "0g", "1gb", "-1g"])
def test_memory_is_a_size_as_java_takes_it(tmp_path: Path, value: str) -> None:
    file = written(tmp_path, f"spark: {{memory: {value}}}")
    (problem,) = problems(file)
    assert problem.startswith(f"spark.memory ({file}): found ")
    assert problem.endswith("expected a size such as 1g or 1500m")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            "tracing: {endpoint: localhost:4318}",
            'found "localhost:4318", expected an address such as http://localhost:4318',
        ),
        (
            "spark: {remote: spark.example}",
            'found "spark.example", expected an address such as sc://spark.example:15002',
        ),
        ("spark: {mirror: maven}", 'found "maven", expected an address that begins with https://, http:// or file://'),
        # They may contain credentials.
        (
            "tracing: {endpoint: 'htp://anna:secret@collector:4318'}",
            "found an invalid value, expected an address such as http://localhost:4318",
        ),
        (
            "spark: {remote: 'spark.example:15002/;token=secret'}",
            "found an invalid value, expected an address such as sc://spark.example:15002",
        ),
        (
            "spark: {mirror: 'anna:secret@maven.example'}",
            "found an invalid value, expected an address that begins with https://, http:// or file://",
        ),
        ("tracing: {ratio: lots}", 'found "lots", expected a number'),
        ("tracing: {ratio: [1]}", "found a list of 1, expected a number"),
        ("data_dir: 5", "found 5, expected a path"),
        ('data_dir: "a\\0b"', r'found "a\u0000b", expected a path without null characters'),
        ('secrets: {folders: ["a\\0b"]}', "found an invalid value, expected a path without null characters"),
    ],
)
def test_what_was_expected_is_written_for_people(tmp_path: Path, text: str, problem: str) -> None:
    assert [it.partition("): ")[2] for it in problems(written(tmp_path, text))] == [problem]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("lake: {retention: {acme: {revisions: yes}}}", "a whole number"),
        ("search: {workers: true}", "a whole number"),
        ("api: {port: true}", "a whole number"),
        ("quotas: [{namespaces: [acme], things: true}]", "a whole number"),
        ("limits: {payload: true}", "a size such as 512KiB or 1MiB"),
        ("quotas: [{namespaces: [acme], bytes: true}]", "a size such as 512KiB or 1MiB"),
        ("tracing: {ratio: true}", "a number"),
    ],
)
def test_yes_and_true_are_no_numbers(tmp_path: Path, text: str, expected: str) -> None:
    assert [it.partition("): ")[2] for it in problems(written(tmp_path, text))] == [f"found true, expected {expected}"]


@pytest.mark.parametrize("name", ["_env_prefix", "_secrets_dir", "_cli_parse_args", "__pydantic_self__", "_x"])
def test_a_name_with_an_underscore_is_no_option_of_the_library(tmp_path: Path, name: str) -> None:
    file = written(tmp_path, f"{name}: OTHER_\napi: {{port: x}}\n")
    known = ", ".join(Settings.model_fields)
    found = problems(file)
    assert found[0].startswith(f"{name} ({file}): found an unknown setting, expected one of: {known}")
    assert found[1:] == [f'api.port ({file}): found "x", expected a whole number']


@pytest.mark.parametrize("name", ["API", "Api", "DATA_DIR"])
def test_a_setting_in_upper_case_is_unknown_as_in_the_schema(tmp_path: Path, name: str) -> None:
    # Beside the setting itself, one of the two would win without a word.
    file = written(tmp_path, f"api: {{port: 1}}\n{name}: {{port: 2}}\n")
    (problem,) = problems(file)
    assert problem.startswith(f"{name} ({file}): found an unknown setting, expected one of: connections_dir")


def test_a_retention_that_is_invalid_is_shown_as_it_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for text in ("nope", "{default: nope}"):
        file = written(tmp_path, f"lake: {{retention: {text}}}\n")
        assert problems(file)[0].startswith(f'lake.retention.default ({file}): found "nope", expected a duration')
    file = written(tmp_path, "lake: {retention: {days: 0}}\n")
    assert problems(file)[0].startswith(f"lake.retention.default.days ({file}): found 0, expected a number of days")
    file = written(tmp_path, "lake: {retention: {acme.site: -1}}\n")
    assert problems(file)[0].startswith(f'lake.retention["acme.site"] ({file}): found -1, expected')
    monkeypatch.setenv("CONNECTIVITY_LAKE__RETENTION", "soon")
    expected = 'lake.retention.default (CONNECTIVITY_LAKE__RETENTION): found "soon", expected a duration'
    assert problems()[0].startswith(expected)


def test_reconnecting_waits_at_least_min_and_at_most_max(tmp_path: Path) -> None:
    assert "min above 0, and max not below min" in problems(written(tmp_path, "reconnect: {min: 40s}\n"))[0]
    assert "min above 0" in problems(written(tmp_path, "reconnect: {min: 0s}\n"))[0]


@pytest.mark.parametrize("mode", ["embedded", "external", "off"])
@pytest.mark.parametrize(
    "master", ["spark://h:7077", "k8s://https://h:6443", "yarn", "local-cluster[2,1,512]", "local[x]"]
)
def test_design_8_26_a_spark_master_whose_workers_may_be_elsewhere_is_refused(
    master: str, mode: str, tmp_path: Path
) -> None:
    (problem,) = problems(written(tmp_path, f"spark: {{mode: '{mode}', master: '{master}'}}\n"))
    assert f'found "{master}", expected local, local[N] or local[*]: the journal is an SQLite file' in problem


@pytest.mark.parametrize("master", ["local", "local[3]", "local[*]"])
def test_a_spark_master_on_this_host_is_taken(master: str, tmp_path: Path) -> None:
    assert load_settings(written(tmp_path, f"spark: {{master: '{master}'}}\n")).spark.master == master


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a: ]", "line 1, column 4"),
        ("- a", "found a list of 1, expected an object of settings"),
        ("data_dir: a\ndata_dir: b", 'the name "data_dir" several times in one object'),
        ("1: 2", '["1"] ('),
        ("api: {1: 2}", "found 1, expected a name that is a string"),
        ("api: 5", "api ("),
    ],
)
def test_a_file_that_is_no_object_of_settings_is_a_problem(tmp_path: Path, text: str, found: str) -> None:
    file = written(tmp_path, text)
    assert found in problems(file)[0]
    assert str(file) in problems(file)[0]


def test_a_missing_file_is_a_problem(tmp_path: Path) -> None:
    assert "No such file" in problems(tmp_path / "nope.yaml")[0]


def test_a_variable_for_a_whole_group_is_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONNECTIVITY_API", "port 5")
    assert problems() == ["CONNECTIVITY_API: expected JSON, or one variable for each setting in it"]
    monkeypatch.setenv("CONNECTIVITY_API__TOKENS", "[{name: a}]")
    monkeypatch.setenv("CONNECTIVITY_API", "{}")
    assert problems() == ["CONNECTIVITY_API__TOKENS: expected JSON"]
    monkeypatch.delenv("CONNECTIVITY_API__TOKENS")
    monkeypatch.setenv("CONNECTIVITY_API", '{"port": "x"}')
    assert problems() == ['api.port (CONNECTIVITY_API): found "x", expected a whole number']


def test_no_token_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = written(tmp_path, f"api: {{token: {SECRET}, port: x}}\n")
    assert SECRET not in "".join(problems(file))
    assert SECRET not in repr(load_settings(written(tmp_path, f"api: {{token: {SECRET}}}\n")))
    assert SECRET not in "".join(problems(written(tmp_path, f"api: {{token: [{SECRET}]}}\n")))
    assert "90210417" not in "".join(problems(written(tmp_path, "api: {token: 90210417}\n")))
    assert SECRET not in "".join(problems(written(tmp_path, f"api: {SECRET}\n")))
    assert SECRET not in "".join(problems(written(tmp_path, f"api: {{tokn: {SECRET}}}\n")))
    monkeypatch.setenv("CONNECTIVITY_API", f'{{"token": ["{SECRET}"]}}')
    assert SECRET not in "".join(problems())
    monkeypatch.setenv("CONNECTIVITY_API", f'{{"token": "{SECRET}", "port": "x"}}')
    assert SECRET not in "".join(problems())
    monkeypatch.setenv("CONNECTIVITY_API", SECRET)
    assert SECRET not in "".join(problems())


def test_hosts_are_entries_of_lists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONNECTIVITY_HOSTS__BLOCKED", "10.0.0.0/8, *.internal")
    found = load_settings(written(tmp_path, "hosts: {private: Refuse, allowed: [broker.internal]}\n")).hosts.rules
    assert found == EgressRules(False, ("10.0.0.0/8", "*.internal"), ("broker.internal",))
    monkeypatch.setenv("CONNECTIVITY_HOSTS__BLOCKED", "10.0.0.1/8")
    assert problems(written(tmp_path, "hosts: {private: deny}\n")) == [
        f'hosts.private ({tmp_path / "settings.yaml"}): found "deny", expected one of: allow, refuse',
        'hosts.blocked[0] (CONNECTIVITY_HOSTS__BLOCKED): found "10.0.0.1/8", expected an address, a network such as '
        "10.0.0.0/8, or a host name such as broker.acme.example or *.acme.example",
    ]


def test_paths_with_an_index_of_their_own_are_places_of_values(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("search: {indexed_paths: [/attributes/room, features/lamp/properties/on]}", encoding="utf-8")
    assert load_settings(file).search.indexed_paths == ("attributes/room", "features/lamp/properties/on")
    for wrong in (
        "attributes",
        "features/*/properties/on",
        "features/lamp/properties",
        "thingId",
        "_modified",
        "attributes//a",
    ):
        file.write_text(f"search: {{indexed_paths: ['{wrong}']}}", encoding="utf-8")
        with pytest.raises(SettingsError, match=r"search\.indexed_paths"):
            load_settings(file)


def test_creations_are_granted_and_revoked_by_rules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text(
        "creation: {grant: [{namespaces: acme.*, subjects: [edge:a, edge:b]}], revoke: [{types: [policy]}]}"
    )
    rules = load_settings(file).creation.rules
    assert rules.may_create("thing", "acme.plant", ["edge:b"])
    assert not rules.may_create("policy", "acme.plant", ["edge:b"])
    assert not rules.may_create("thing", "other", ["edge:b"])
    assert load_settings().creation.rules.may_create("policy", "any", [])
    file.write_text("creation: {grant: [{types: [things]}]}")
    with pytest.raises(SettingsError, match=r'types\[0\] .* found "things", expected one of: thing, policy'):
        load_settings(file)
    monkeypatch.setenv("CONNECTIVITY_CREATION__GRANT", "[]")
    file.write_text("{}")
    assert not load_settings(file).creation.rules.may_create("thing", "acme", ["edge:a"])
