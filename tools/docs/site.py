"""A hook of MkDocs that adds linked files outside of `docs` to the site, below `files`.

Pages use the paths in the repository, so that links also work there. The hook replaces them by the paths in the site.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
DOCS, OUTSIDE = "docs/", "files/"
_LINK = re.compile(r"(?<=\]\()([^)#\s:]+)(?=[)#])")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the files outside of `docs` to which pages link, directly or through added pages."""
    unread = [file for file in files if file.is_documentation_page()]
    while unread:
        page = unread.pop()
        for linked in _linked(page.src_uri, page.content_string):
            uri = _site_path(linked)
            if files.get_file_from_path(uri) is None and (ROOT / linked).is_file():
                added = File.generated(config, uri, abs_src_path=str(ROOT / linked))
                files.append(added)
                if added.is_documentation_page():
                    unread.append(added)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001
    """Return the page with the paths of the site in its links."""
    here = _repository_path(page.file.src_uri)

    def link(found: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(here), found[0]))
        if not (ROOT / target).is_file():
            return found[0]
        return posixpath.relpath(_site_path(target), posixpath.dirname(page.file.src_uri))

    return _LINK.sub(link, markdown)


def _linked(src_uri: str, markdown: str) -> Iterator[str]:
    """Yield the repository paths that a page links to."""
    folder = posixpath.dirname(_repository_path(src_uri))
    for link in _LINK.findall(markdown):
        yield posixpath.normpath(posixpath.join(folder, link))


def _repository_path(src_uri: str) -> str:
    return src_uri.removeprefix(OUTSIDE) if src_uri.startswith(OUTSIDE) else DOCS + src_uri


def _site_path(path: str) -> str:
    return path.removeprefix(DOCS) if path.startswith(DOCS) else OUTSIDE + path
