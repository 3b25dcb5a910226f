"""Finds sentences that break the rules of plain English: `python -m tools.language [PATH …]`.

It checks the paragraphs of Markdown, the docstrings and comments of Python, and the comments of YAML, shell scripts and
other files with `#`. It ignores code between backquotes. `words.txt` has the words that the project does not use, in the
format of codespell's dictionaries.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

PRODUCT = ("connectivity", "mappings", "spark_store")
PATHS = (
    *PRODUCT,
    "docs",
    "examples",
    "tools",
    "deploy",
    ".github",
    "README.md",
    "CONTRIBUTING.md",
    "Dockerfile",
    "Makefile",
    "compose.yaml",
)
HASH_COMMENTS = frozenset({"", ".conf", ".service", ".sh", ".yaml", ".yml"})
"""Suffixes of files with comments that begin with `#`."""

LONGEST_MODULE_DOCSTRING = 12
"""In lines."""
LONGEST_FIRST_LINE = 100
"""Of a docstring, in characters."""
STATE_TABLES: frozenset[str] = frozenset(
    {
        "mappings/reactive_streams_io/endpoint.py",
        "mappings/reactive_streams_io/publisher_names.py",
        "spark_store/rql/parser.py",
    }
)
"""Modules whose docstrings show a table or a grammar of a protocol, and may be longer."""

RULES = {
    "name the subject of the sentence": r"(?:^|[.:;] )(?:What|Whom?|Whose|Whatever|Whichever|Whoever) [^.:;?]*(?:[.:;]|$)",
    "say what happens": r"\b(?:is|are|was|were|be|been|being) (?:not )?told\b",
    "say what it is instead": r"\bthat (?:is|are) none\b|\bwhich (?:is|are) none\b",
    "say how": r"\bas (?:it|they) should\b",
    "write 'is'": r"\b(?:stands?|stood) (?:for itself|there|here|on (?:its|the|a) (?:own |page)|at the|in the|open|alone)\b",
    "write 'applies'": r"\b(?:counts?|counted) (?:as|more|less|for|too|only|there|here|alone|again)\b",
    "write 'they'": r"\b(?:he|she|his|her|him) (?:may|can|has|is|was|wants|asks|gets|sees|reads|writes|must)\b",
    "use the field's word": (
        r"\bwide quer(?:y|ies)\b|\bhot window\b|\bown origin\b|\bmistakes? of our own\b|\btr(?:y|ied|ies|ying) out\b"
        r"|\bof (?:ours|its own accord)\b|\bbelongs? into\b|\b(?:variables|settings?) counts?\b"
    ),
}
_RULES = {rule: re.compile(pattern) for rule, pattern in RULES.items()}
_WORDS = dict(
    line.split("->") for line in Path(__file__).with_name("words.txt").read_text("utf-8").splitlines() if "->" in line
)
_WORD = re.compile(rf"\b(?:{'|'.join(_WORDS)})\b", re.IGNORECASE)
_CODE = re.compile(r"``.+?``|`[^`]*`|\[[^\]]*\]\([^)]*\)", re.DOTALL)


class Violation(NamedTuple):
    """A sentence that breaks a rule."""

    line: int
    rule: str
    found: str


def sentences(text: str, line: int = 1) -> Iterator[Violation]:
    """The violations in paragraphs, of which the first begins at `line`."""
    for paragraph in re.split(r"(\n\s*(?:[-*>|#].*?)?(?=\n|$)|\n\s*[-*|#>] )", text):
        plain = " ".join(_CODE.sub("`code`", paragraph).split())
        for rule, pattern in _RULES.items():
            for match in pattern.finditer(plain):
                yield Violation(line, rule, match[0].strip(" .:;")[:60])
        for match in _WORD.finditer(plain):
            yield Violation(line, f"write '{_WORDS[match[0].lower()]}'", match[0])
        line += paragraph.count("\n")


def markdown(text: str) -> Iterator[Violation]:
    """The violations in a page of Markdown, without its code blocks."""
    lines, quoted = text.split("\n"), False
    for index, found in enumerate(lines):
        if found.lstrip().startswith(("```", "~~~")):
            quoted = not quoted
            lines[index] = ""
        elif quoted:
            lines[index] = ""
    yield from sentences("\n".join(lines))


def comments(text: str) -> Iterator[Violation]:
    """The violations in the comments of a file that begin with `#`, each in lines of its own."""
    lines = (line.strip() for line in text.split("\n"))
    yield from sentences("\n".join(line.lstrip("# ") if line.startswith("#") else "" for line in lines))


def python(text: str, name: str = "") -> Iterator[Violation]:
    """The violations in the docstrings and comments of a module."""
    tree = ast.parse(text)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield from sentences(token.string.lstrip("# "), token.start[0])
    for node in ast.walk(tree):
        for statement in getattr(node, "body", ()) if not isinstance(node, ast.Lambda | ast.IfExp) else ():
            match statement:
                case ast.Expr(value=ast.Constant(value=str(docstring))):
                    yield from sentences(docstring, statement.lineno)
                    if len(first := docstring.strip().split("\n")[0]) > LONGEST_FIRST_LINE:
                        yield Violation(
                            statement.lineno, f"at most {LONGEST_FIRST_LINE} characters in the first line", first[:60]
                        )
    length = len((ast.get_docstring(tree) or "").split("\n"))
    if length > LONGEST_MODULE_DOCSTRING and name not in STATE_TABLES:
        yield Violation(1, f"at most {LONGEST_MODULE_DOCSTRING} lines in a module's docstring", f"{length} lines")


def main(arguments: list[str]) -> int:
    """Print the violations. The exit code is 1 if there are any."""
    count = 0
    for path in map(Path, arguments or PATHS):
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            for violation in _violations(file):
                count += 1
                print(f"{file}:{violation.line}: {violation.rule}: {violation.found}")
    return min(count, 1)


def _violations(file: Path) -> Iterator[Violation]:
    if file.suffix == ".py":
        yield from python(file.read_text("utf-8"), file.as_posix())
    elif file.suffix == ".md":
        yield from markdown(file.read_text("utf-8"))
    elif file.suffix in HASH_COMMENTS and file.is_file():
        yield from comments(file.read_text("utf-8"))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
