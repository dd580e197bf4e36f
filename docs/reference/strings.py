"""Every string that a user may read, on one page: errors, help, settings, log events, titles.

Read off the sources, so that a diff of the page shows each change. `figures` tells how long the
sentences of errors are: `python -m docs.reference.strings` prints them.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import mean
from typing import NamedTuple

from towpath.cli.config import groups
from towpath.settings import Core, leaves
from towpath.telemetry import events

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "towpath"

HEAD = """# Every string

What users read of Towpath, gathered from the sources by `make docs`: a reader sees it together, and
a diff shows each change. `{…}` is filled in.
"""
_TITLE = re.compile(r"{% block title %}(.*?){% endblock %}|<h[12][^>]*>(.*?)</h[12]>", re.DOTALL)
_SAID = frozenset({"rule", "reason", "why", "hint", "detail", "title", "summary", "description"})
"""Keywords whose texts reach a user."""
_SENTENCE = re.compile(r"(?<=[.!?])\s+")


class Told(NamedTuple):
    """One string, and what it is of."""

    of: str
    text: str


def strings_page() -> str:
    """By kind, then by module, in the order of the sources."""
    errors, others = list(error_strings()), list(call_strings())
    parts = [
        ("Errors and their remedies", errors),
        ("Refusals, rules and reasons", others),
        ("Help of the command line", list(help_strings())),
        ("Settings", [Told(it.name, it.about) for it in leaves(groups(Core()))]),
        ("Log events", [Told(it.name, it.sentence) for it in events.CATALOGUE]),
        ("Fields of log events", [Told(*it) for it in events.FIELDS.items()]),
        ("Titles of the dashboard", list(page_titles())),
        ("Titles of the documents", list(document_titles())),
    ]
    return HEAD + "".join(_part(title, told) for title, told in parts)


def figures() -> str:
    """How long the sentences of errors and remedies are."""
    sentences = [it for told in error_strings() for it in _SENTENCE.split(told.text) if it]
    lengths = [len(it.split()) for it in sentences]
    longest = max(sentences, key=lambda it: len(it.split()))
    return (
        f"errors and remedies: {len(sentences)} sentences, {mean(lengths):.1f} words on average, "
        f"the longest has {max(lengths)}: {longest}"
    )


def error_strings() -> Iterator[Told]:
    """Of each class of errors: its message and its remedy."""
    for _, tree in _modules():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and _is_error(node):
                for text in _texts_of_error(node):
                    yield Told(node.name, text)


def call_strings() -> Iterator[Told]:
    """What is given to errors where they are raised, and under keywords that reach a user."""
    for name, tree in _modules():
        seen: set[str] = set()
        for node in ast.walk(tree):
            for text in _given(node):
                if _is_prose(text) and text not in seen:
                    seen.add(text)
                    yield Told(name, text)


def help_strings() -> Iterator[Told]:
    """Of commands, arguments and options."""
    for name, tree in _modules():
        for node in ast.walk(tree):
            if isinstance(node, ast.AsyncFunctionDef | ast.FunctionDef) and _is_command(node):
                yield Told(node.name, " ".join((ast.get_docstring(node) or "").split()))
            if isinstance(node, ast.keyword) and node.arg == "help":
                yield from (Told(name, text) for text in [_text(node.value)] if text)


def page_titles() -> Iterator[Told]:
    for path in sorted(SOURCE.rglob("*.html")):
        for found in _TITLE.finditer(path.read_text()):
            yield Told(path.stem, " ".join((found[1] or found[2] or "").split()))


def document_titles() -> Iterator[Told]:
    for path in sorted((ROOT / "docs").rglob("*.md")):
        if path.parent.name in ("decisions", "reference"):
            continue
        first = path.read_text().partition("\n")[0]
        if first.startswith("# "):
            yield Told(path.relative_to(ROOT / "docs").as_posix(), first.removeprefix("# "))


def _part(title: str, told: list[Told]) -> str:
    lines = [f"- `{it.of}`: {_plain(it.text)}\n" for it in told if it.text]
    return "".join([f"\n## {title}\n\n", *lines])


def _plain(text: str) -> str:
    """As one line of Markdown that shows it as it is."""
    return re.sub(r"([\\*_<>\[\]|])", r"\\\1", " ".join(text.split()))


def _modules() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(SOURCE.rglob("*.py")):
        yield path.relative_to(SOURCE).as_posix(), ast.parse(path.read_text())


def _is_error(node: ast.ClassDef) -> bool:
    return any(
        isinstance(it, ast.Assign | ast.AnnAssign)
        and any(isinstance(name, ast.Name) and name.id == "code" for name in _targets(it))
        for it in node.body
    ) and any(isinstance(it, ast.Assign) and "remedy" in ast.dump(it) for it in node.body)


def _targets(node: ast.Assign | ast.AnnAssign) -> list[ast.expr]:
    return node.targets if isinstance(node, ast.Assign) else [node.target]


def _texts_of_error(node: ast.ClassDef) -> Iterator[str]:
    for it in node.body:
        if isinstance(it, ast.FunctionDef) and it.name == "__init__":
            for call in ast.walk(it):
                if isinstance(call, ast.Call) and "__init__" in ast.unparse(call.func):
                    yield from filter(_is_prose, map(_text, call.args))
        elif isinstance(it, ast.Assign) and "remedy" in ast.unparse(it.targets[0]):
            yield from filter(None, [_text(it.value)])


def _given(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
        yield from map(_text, node.exc.args)
    if isinstance(node, ast.keyword) and node.arg in _SAID:
        yield _text(node.value)
    if isinstance(node, ast.Assign) and "reason" in ast.unparse(node.targets[0]):
        yield _text(node.value)


def _is_command(node: ast.AsyncFunctionDef | ast.FunctionDef) -> bool:
    return any(
        "verb(" in ast.unparse(it) or ".command(" in ast.unparse(it) for it in node.decorator_list
    )


def _is_prose(text: str) -> bool:
    return " " in text.strip()


def _text(node: ast.expr) -> str:
    """What a literal says, with … for what is filled in; empty for anything else."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=values):
            return "".join(_text(it) if isinstance(it, ast.Constant) else "{…}" for it in values)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _text(left) + _text(right)
        case ast.IfExp(body=body, orelse=other):
            return " / ".join(filter(None, (_text(body), _text(other))))
        case _:
            return ""


if __name__ == "__main__":
    sys.stdout.write(figures() + "\n")
