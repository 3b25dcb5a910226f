"""The tokens of the settings."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from connectivity.config.api_settings import TokenRole
from connectivity.config.settings_loader import load_settings
from connectivity.errors import SettingsError

WORD = "s3cr3t-s3cr3t-s3cr3t"


def settings_of(folder: Path, tokens: object, **api: object) -> Path:
    file = folder / "settings.yaml"
    file.write_text(yaml.safe_dump({"api": {"tokens": tokens, **api}}), encoding="utf-8")
    return file


def test_a_token_role_includes_the_permissions_of_lower_roles() -> None:
    assert [[role.may(needed) for needed in TokenRole] for role in TokenRole] == [
        [True, False, False],
        [True, True, False],
        [True, True, True],
    ]


def test_a_token_has_a_name_a_role_and_subjects(tmp_path: Path) -> None:
    tokens = [{"name": "a", "token": WORD}, {"name": "b", "token": WORD + "2", "role": "ADMIN", "subjects": ["x:y"]}]
    found = load_settings(settings_of(tmp_path, tokens, host="0.0.0.0")).api
    assert [(it.name, it.role, it.subjects) for it in found.tokens] == [
        ("a", TokenRole.READ, ()),
        ("b", TokenRole.ADMIN, ("x:y",)),
    ]
    assert found.needs_token
    assert WORD not in repr(found)


def test_tokens_may_come_from_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONNECTIVITY_API__TOKENS", f'[{{"name": "a", "token": "{WORD}", "role": "write"}}]')
    assert [it.role for it in load_settings().api.tokens] == [TokenRole.WRITE]


@pytest.mark.parametrize(
    ("tokens", "problem"),
    [
        ([{"name": "a"}], "api.tokens[0].token"),
        ([{"name": "a"}], "found nothing, expected this setting"),
        ([{"token": WORD}], "api.tokens[0].name"),
        ([{"token": WORD}], "found nothing, expected this setting"),
        ([{"name": "a b", "token": WORD}], "api.tokens[0].name"),
        ([{"name": "a", "token": "s3cr3t"}], "a token of at least 16 characters"),
        ([{"name": "a", "token": WORD, "role": "root"}], "expected one of: read, write, admin"),
        ([{"name": "a", "token": WORD, "rule": "read"}], "did you mean role?"),
        (
            [{"name": "a", "token": WORD}, {"name": "a", "token": WORD + "2"}],
            "every token with its own name and its own value",
        ),
        (
            [{"name": "a", "token": WORD}, {"name": "b", "token": WORD}],
            "every token with its own name and its own value",
        ),
        (
            [{"name": "a", "token": WORD, "role": "admin", "grants": ["a:*"]}],
            "grants only with the role write; this token has the role admin",
        ),
        ([{"name": "a", "token": WORD, "grants": []}], "grants only with the role write; this token has the role read"),
        ([{"name": "a", "token": WORD, "role": "write", "grants": ["{{ x }}"]}], "api.tokens[0].grants[0]"),
        (
            [{"name": "a", "token": WORD, "role": "write", "grants": ["*"]}],
            "all subjects of a namespace such as acme:*",
        ),
        ([{"name": "a", "token": WORD, "role": "write", "grants": ["a*:b"]}], "a subject such as acme:fleet"),
        (WORD, "api.tokens"),
        ([WORD], "api.tokens[0]"),
        ([[WORD]], "api.tokens[0]"),
        ({"a": WORD}, "api.tokens"),
    ],
)
def test_a_token_that_cannot_be_one_is_a_problem_that_does_not_show_it(
    tmp_path: Path, tokens: object, problem: str
) -> None:
    with pytest.raises(SettingsError) as refusal:
        load_settings(settings_of(tmp_path, tokens))
    assert problem in str(refusal.value)
    assert "s3cr3t" not in str(refusal.value)


@pytest.mark.parametrize("text", [f"{WORD}\n", f" {WORD}", f"{WORD}\r", f"{WORD} ", f"{WORD}\t{WORD}"])
@pytest.mark.parametrize("is_named", [True, False])
def test_a_token_that_no_header_can_carry_is_refused(tmp_path: Path, text: str, is_named: bool) -> None:
    # Such as that of a file with a line end: all clients would be refused.
    place = "api.tokens[0].token" if is_named else "api.token"
    named = [{"name": "a", "token": text}]
    file = settings_of(tmp_path, named) if is_named else settings_of(tmp_path, [], token=text)
    with pytest.raises(SettingsError) as refusal:
        load_settings(file)
    expected = "a token without line ends and other control characters, and without spaces at its ends"
    assert str(refusal.value) == f"{place} ({file}): found an invalid token, expected {expected}"


def test_a_token_may_have_spaces_inside(tmp_path: Path) -> None:
    assert load_settings(settings_of(tmp_path, [], token="three words that are long")).api.needs_token
