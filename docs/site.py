"""The site: what is outside of `docs` is part of it, and links lead there as in the repository.

MkDocs calls the functions `on_…`. README is the first page; what else is outside is below
`repository/`. A page that no section of `mkdocs.yml` names stands at the end of its folder's.
"""

import re
from pathlib import Path
from posixpath import dirname, relpath
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
FIRST = ROOT / "README.md"
OUTSIDE = ("ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "LICENSE", "examples/**/*")
SECTIONS = {
    "how-to": "How-to",
    "reference": "Reference",
    "explanation": "Explanation",
    ".": "Project",
}
_LINK = re.compile(r"\[([^\]\[]*)\]\(([^)#:\s]+)(#[^)]*)?\)")


def on_config(config: MkDocsConfig) -> None:
    """Find the pages that no section names."""
    named = set(re.findall(r"[\w./-]+\.md", str(config.nav)))
    sections: dict[str, list[Any]] = {
        title: pages for section in config.nav or [] for title, pages in section.items()
    }
    for folder, title in SECTIONS.items():
        pages = [path.relative_to(DOCS).as_posix() for path in (DOCS / folder).glob("*.md")]
        sections.get(title, []).extend(sorted(set(pages) - named))


def on_files(files: Files, config: MkDocsConfig) -> None:
    """README and what else is outside of `docs` are files of the site."""
    outside = [FIRST, *(path for pattern in OUTSIDE for path in sorted(ROOT.glob(pattern)))]
    for path in outside:
        if path.is_file() and "__pycache__" not in path.parts:
            files.append(File.generated(config, uri_of(path), abs_src_path=str(path)))


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links of the repository become those of the site."""
    source = Path(page.file.abs_src_path or DOCS / page.file.src_uri)

    def link(found: re.Match[str]) -> str:
        text, words, anchor = found.groups()
        target = (source.parent / words).resolve()
        if target.is_dir() and not (target / "README.md").exists():
            return text  # a folder without a page is named, not linked
        if not target.is_relative_to(ROOT):
            return found[0]
        there = uri_of(target / "README.md" if target.is_dir() else target)
        return f"[{text}]({relpath(there, dirname(page.file.src_uri))}{anchor or ''})"

    return _LINK.sub(link, markdown)


def uri_of(path: Path) -> str:
    """Where a file of the repository is in the site."""
    if path == FIRST:
        return "index.md"
    if path.is_relative_to(DOCS):
        return path.relative_to(DOCS).as_posix()
    return f"repository/{path.relative_to(ROOT).as_posix()}"
