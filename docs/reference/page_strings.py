"""The words on the dashboard's pages, read off their templates and scripts."""

import re
from html.parser import HTMLParser
from pathlib import Path

from jinja2 import Environment

_INLINE = frozenset({"a", "b", "bdi", "br", "code", "em", "i", "span", "strong", "time"})
_READ_ALOUD = ("aria-label", "title", "placeholder", "alt")
_SCRIPT_TEXT = re.compile(r'"(?:[^"\\\n]|\\.)*"|`[^`]*`')
_FILLED_IN = re.compile(r"\$\{(?:[^{}]|\{[^{}]*\})*\}")
_SOURCE = re.compile(r"^([/.#\[&?%('{]|use strict|note |yes )|^[A-Z]+$|[<>=]|\.html$")
"""What is code and no words: paths, selectors, constants, markup."""
_APART = frozenset({",", "=", ":", "[", "]", "{", "}"})
"""What stands between two texts of one expression."""


def template_strings(path: Path) -> list[str]:
    """Text, labels and what is handed to macros, in their order and each once."""
    page, given = _without_jinja(path.read_text())
    reader = _PageText()
    reader.feed(page)
    reader.close()
    return list(dict.fromkeys([*reader.texts, *filter(_is_said, given)]))


def script_strings(path: Path) -> list[str]:
    """What a script of a page may show: its texts of more than one word."""
    found = (_FILLED_IN.sub("{…}", text[1:-1]) for text in _SCRIPT_TEXT.findall(path.read_text()))
    return list(dict.fromkeys(text for text in found if " " in text.strip() and _is_said(text)))


class _PageText(HTMLParser):
    """Gathers what a page shows, one text per block."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []
        self._open: list[str] = []
        self._is_code = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in _INLINE:
            self._end_text()
        self._is_code = self._is_code or tag in ("script", "style")
        read = [said or "" for name, said in attrs if name in _READ_ALOUD]
        self.texts += [said for said in read if _words(said)]

    def handle_endtag(self, tag: str) -> None:
        if tag not in _INLINE:
            self._end_text()
        self._is_code = self._is_code and tag not in ("script", "style")

    def handle_data(self, data: str) -> None:
        if not self._is_code:
            self._open.append(data)

    def close(self) -> None:
        super().close()
        self._end_text()

    def _end_text(self) -> None:
        text = " ".join("".join(self._open).split())
        self._open.clear()
        if _words(text):
            self.texts.append(text)


def _without_jinja(template: str) -> tuple[str, list[str]]:
    """The page with {…} for what is filled in and / between choices; the texts in expressions."""
    page: list[str] = []
    given = _Given()
    for _, kind, value in Environment(autoescape=True).lex(template):
        if kind == "data":
            page.append(value)
        elif kind == "variable_begin":
            page.append("{…}")
        elif kind == "name" and value in ("else", "elif"):
            page.append(" / ")
        given.see(kind, value)
    return "".join(page), given.texts


class _Given:
    """Gathers the texts in expressions, whole: `"Pause " ~ name ~ "?"` is one of them."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self._parts: list[str] = []
        self._before = ""

    def see(self, kind: str, value: str) -> None:
        if kind == "string":
            self._parts.append(value[1:-1])
        elif kind == "name":
            self._parts += ["{…}"] if self._parts[-1:] != ["{…}"] else []
        elif kind.endswith("_end") or value in _APART or (value == "(" and self._before == "name"):
            if any(part != "{…}" for part in self._parts):
                self.texts.append("".join(self._parts).strip())
            self._parts = []
        self._before = self._before if kind == "whitespace" else kind


def _words(text: str) -> str:
    return re.sub(r"\{…\}|[\W\d_]", "", text)


def _is_said(text: str) -> bool:
    is_text = " " in text.strip() or text[:1].isupper()
    return is_text and bool(_words(text)) and not _SOURCE.search(text)
