from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_settings.exceptions import SettingsError as UnreadableVariable

from connectivity.config.documents import read_document
from connectivity.config.problems import did_you_mean, expected_of, json_path, nearest_choice, show
from connectivity.config.quantities import read_json_or_text, read_list
from connectivity.config.section import Section
from connectivity.config.settings import PREFIX, RetentionSetting, Settings, model_of, read_retention
from connectivity.errors import SettingsError

_SECTIONS_WITH_RULES = {
    "api": "a host that is not loopback, and no token or a short one",
    "reconnect": "other values",
}
"""The found value in errors about several settings of a group."""

_ADDRESSES = {("spark", "mirror"), ("spark", "remote"), ("tracing", "endpoint")}
"""Addresses of other services. User information and parameters may contain credentials."""


def load_settings(file: Path | None = None) -> Settings:
    """The settings of a file and the environment. Raises SettingsError with every problem."""
    content: Mapping[str, Any] = {}
    problems: list[str] = []
    if file is not None:
        document, found = read_document(file)
        problems += (f"{file}: {problem}" for problem in found)
        if isinstance(document, dict):
            content = document
        elif not found and document is not None:
            problems.append(f"{file}: found {show(document)}, expected an object of settings")
    problems += _unknown_variables()
    values = {str(name): value for name, value in content.items()}
    match values:
        case {"lake": {"retention": rules, **others}}:
            # The library merges only objects with the variables of namespaces.
            with suppress(ValueError):
                values["lake"] = {**others, "retention": read_retention(rules)}
    # The library would treat some as its own options, and others, in upper case, as settings.
    unknown = [name for name in values if name not in Settings.model_fields]
    problems += (_unknown(json_path(name), str(file), name, list(Settings.model_fields)) for name in unknown)
    try:
        settings = Settings(**{name: value for name, value in values.items() if name not in unknown})
    except ValidationError as error:
        problems += (_explain(details, content, file) for details in error.errors(include_url=False))
    except UnreadableVariable as error:
        problems.append(_explain_unreadable(error))
    else:
        if not problems:
            return settings
    raise SettingsError("\n".join(problems))


def _explain_unreadable(error: UnreadableVariable) -> str:
    """Return the line for a variable that is not JSON.

    The library names only its group, and the cause of the error has its text.
    """
    field = re.search(r'field "(\w+)"', str(error))
    group, text = PREFIX + (field[1].upper() if field else "…"), getattr(error.__cause__, "doc", None)
    names = [name for name, value in os.environ.items() if value == text and name.upper().startswith(f"{group}__")]
    if names and os.environ.get(group) != text:
        return f"{', '.join(names)}: expected JSON"
    return f"{group}: expected JSON, or one variable for each setting in it"


def _explain(details: Any, content: Mapping[str, Any], file: Path | None) -> str:
    """Return the line for a problem: setting, origin of its value, found, expected."""
    steps = [step for step in details["loc"] if step != "[key]"]
    origin, value = _origin(steps, content, file)
    name = json_path(*steps)
    if details["type"] == "extra_forbidden":
        return _unknown(name, origin, steps[-1], list(_section(steps[:-1]).model_fields))
    # An invalid name is reported at its own place.
    found = show(steps[-1] if details["input"] == steps[-1] else value)
    expected = expected_of(details["type"], details.get("ctx", {}), details["msg"])
    hint = nearest_choice(value, expected)
    if details["type"] == "missing":
        found, expected = "nothing", "this setting"
    elif steps[-1] == "token" or (steps[:2] == ["api", "tokens"] and (steps[2:] == [] or isinstance(steps[-1], int))):
        found = "an invalid token"
    elif steps[0] == "secrets" or (tuple(steps) in _ADDRESSES and re.search("[@;?]", str(value))):
        found = "an invalid value"
    elif len(steps) == 1 and details["type"] == "value_error":
        found = _SECTIONS_WITH_RULES.get(steps[0], found)
    elif steps == ["api"]:
        found = "an invalid value"
    return f"{name} ({origin}): found {found}, expected {expected}" + (f" ({hint})" if hint else "")


def _unknown(path: str, origin: str, name: str, known: list[str]) -> str:
    """Return the line for an unknown setting. Its value is not shown: it may be a token."""
    hint = did_you_mean(name, known)
    return f"{path} ({origin}): found an unknown setting, expected one of: {', '.join(known)}" + (
        f" ({hint})" if hint else ""
    )


def _origin(steps: list[Any], content: Mapping[str, Any], file: Path | None) -> tuple[str, object]:
    """The variable or the file that a value came from, and the value."""
    variables = {name.upper(): (name, value) for name, value in os.environ.items() if value}
    for length in range(len(steps), 0, -1):
        key = PREFIX + "__".join(str(step) for step in steps[:length]).upper()
        if key in variables:
            name, text = variables[key]
            return name, text if length == len(steps) else _value_at(read_json_or_text(text), steps[length:])
    value = _value_at(content, steps)
    if value is None and (below := _variables_below(steps, variables)):
        return below, None
    return str(file) if file else "default", value


def _value_at(value: Any, steps: list[Any]) -> object:
    for step in steps:
        if isinstance(value, str | int | float):
            # Instead of an object with a `default`, that alone may be written; instead of a list, its values with commas.
            listed = read_list(value)
            if isinstance(step, int) and isinstance(listed, list) and step < len(listed):
                return str(listed[step])
            return value if step == "default" else None
        if step == "default" and isinstance(value, dict) and step not in value:
            # An object of limits may be written in its place, too.
            continue
        try:
            value = value[step]
        except (KeyError, IndexError, TypeError):
            return None
    return value


def _variables_below(steps: list[Any], variables: Mapping[str, Any]) -> str:
    prefix = PREFIX + "".join(f"{step}__" for step in steps).upper()
    return ", ".join(name for key, (name, _) in variables.items() if key.startswith(prefix))


def _section(steps: list[Any]) -> type[BaseModel]:
    """The group of settings at this place."""
    model: type[BaseModel] = Settings
    for step in steps:
        if isinstance(step, int):
            continue
        # Namespaces are no fields: each has a rule.
        model = model_of(model.model_fields[step]) if step in model.model_fields else RetentionSetting
    return model


_FOR_THE_COMMAND_LINE = frozenset({"url", "token"})


def _unknown_variables() -> Iterator[str]:
    """Yield unknown variables that look like settings.

    One without two underscores is reported only if it resembles a setting, since others may use the prefix, such as a
    cluster that announces services in variables. Variables of the command line are left out.
    """
    known = list(Settings.model_fields)
    misspelled = _with_one_underscore()
    for name, value in os.environ.items():
        if not name.upper().startswith(PREFIX) or not value:
            continue
        group, nested, _ = name.upper().removeprefix(PREFIX).lower().partition("__")
        hint = did_you_mean(group, known)
        if (right := misspelled.get(name.upper())) is not None:
            # A cluster's service called connectivity-api announces its port by such a name.
            if not value.startswith(("tcp://", "udp://")):
                yield f"{name}: found an unknown variable, expected {right}"
        elif group not in known and (nested or (hint and group not in _FOR_THE_COMMAND_LINE)):
            yield _unknown(group, name, group, known)
        elif nested and isinstance(Settings.model_fields[group].default, Path):
            yield f"{name}: found an unknown variable, expected {PREFIX}{group.upper()}, because {group} is one path"


def _with_one_underscore() -> dict[str, str]:
    """Variables with one underscore instead of two between group and setting, and their right names."""
    names = [
        (group, name)
        for group, field in Settings.model_fields.items()
        if isinstance(field.default, Section)
        for name in type(field.default).model_fields
    ]
    return {f"{PREFIX}{group}_{name}".upper(): f"{PREFIX}{group}__{name}".upper() for group, name in names}
