"""Totals of the figures of `make coverage`."""

from __future__ import annotations

from tools.coverage import Coverage, by_folder, of_files


def summary(lines: int, executed: int, branches: int, taken: int) -> dict[str, dict[str, int]]:
    return {
        "summary": {
            "num_statements": lines,
            "covered_lines": executed,
            "num_branches": branches,
            "covered_branches": taken,
        }
    }


def test_a_folder_is_the_sum_of_its_files_and_of_the_folders_in_it() -> None:
    report = {
        "mappings/ids.py": summary(10, 5, 0, 0),
        "mappings/rql/parser.py": summary(30, 30, 8, 6),
        "mappings/rql/lexer.py": summary(10, 0, 2, 0),
    }
    assert by_folder(of_files(report)) == {
        "mappings": Coverage(50, 35, 10, 6),
        "mappings/rql": Coverage(40, 30, 10, 6),
    }
    assert str(Coverage(50, 35, 10, 6)).split() == ["70.0", "%", "60.0", "%", "50"]
