"""The folder of codecs is their registry."""

from __future__ import annotations

import pkgutil

import pytest

from mappings.mappers import codec_names, load_codec


def test_a_codec_is_loaded_by_the_name_in_a_document() -> None:
    assert load_codec("Ditto").terminal_needs_request


def test_every_file_of_the_folder_holds_a_codec() -> None:
    assert [name for name in codec_names() if not hasattr(load_codec(name), "decode")] == []


def test_an_unknown_codec_is_answered_with_the_nearest_known_one() -> None:
    with pytest.raises(LookupError, match="did you mean ditto"):
        load_codec("Dito")


def test_a_protocol_is_found_when_no_more_files_can_be_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    load_codec("Ditto")
    monkeypatch.setattr(pkgutil, "iter_modules", lambda _: ())
    assert load_codec("Ditto").terminal_needs_request
