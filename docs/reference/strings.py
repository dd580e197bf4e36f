"""Every string that a user may read, on one page: errors, help, settings, HTTP, metrics, pages.

Read off the sources, so that a diff of the page shows each change. `figures` tells how long the
sentences of errors are: `python -m docs.reference.strings` prints them.
"""

import ast
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

from docs.reference.http import description
from docs.reference.page_strings import script_strings, template_strings
from towpath.apps.application import applications
from towpath.cli.config import groups
from towpath.engine.fields import declared
from towpath.engine.model import JobOptions
from towpath.engine.options import QueueOptions
from towpath.options import sentences_of
from towpath.settings import Core, leaves
from towpath.telemetry import events, measures

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "towpath"

HEAD = """# Every string

What users read of Towpath, gathered from the sources by `make docs`: a reader sees it together, and
a diff shows each change. `{…}` is filled in.
"""
_SAID = frozenset({"rule", "reason", "why", "hint", "detail", "title", "summary", "description"})
"""Keywords whose texts reach a user."""
_WORDS = re.compile(r"[a-z]{2}[,;:.]? [a-z]{2}")
_SOURCE_TEXT = re.compile(
    r"\b(SELECT|UPDATE|CREATE|DROP|redis\.call|import|sentinel|return|local|charset|max-age)\b"
    r"|-src '|^\s*(\[|\(|<|towpath |/|\$)|\\|\w\[\w+, |{…} {…}$"
)
"""What is no sentence: statements, markup, patterns, examples of commands."""
_FUNCTION = ast.FunctionDef | ast.AsyncFunctionDef
_SENTENCE = re.compile(r"(?<=[.!?])\s+")


class Told(NamedTuple):
    """One string, and what it is of."""

    of: str
    text: str


def strings_page(source: Path = SOURCE, api: dict[str, Any] | None = None) -> str:
    """By kind, then by module, in the order of the sources; *api* is the description over HTTP."""
    parts = [
        ("Errors and their remedies", list(error_strings(source))),
        ("Refusals, rules and reasons", list(call_strings(source))),
        ("Help of the command line", list(help_strings(source))),
        ("Settings", [Told(leaf.name, leaf.about) for leaf in leaves(groups(Core()))]),
        ("Queue options", [Told(*option) for option in sentences_of(QueueOptions).items()]),
        (
            "Job options",
            [Told(option, field.about) for option, field in declared(JobOptions).items()],
        ),
        ("Log events", [Told(event.name, event.sentence) for event in events.CATALOGUE]),
        ("Fields of log events", [Told(*field) for field in events.FIELDS.items()]),
        ("Metrics", list(metric_strings())),
        ("HTTP API", list(http_strings(api or description()))),
        ("Dashboard", list(page_strings(source))),
        ("Titles of the documents", list(document_titles())),
    ]
    known = {told.text for _, found in parts for told in found}  # the same is not shown twice
    others = [told for told in other_strings(source) if told.text not in known]
    parts.append(("Other texts in the code", others))
    return HEAD + "".join(_part(title, told) for title, told in parts)


def figures() -> str:
    """How long the sentences are: of errors and remedies, and of all that the page shows."""
    every = [Told("", line.partition(": ")[2]) for line in strings_page().splitlines() if line]
    return f"errors and remedies: {_lengths(error_strings())}\nall strings: {_lengths(every)}"


def _lengths(told: Iterable[Told]) -> str:
    sentences = [text for entry in told for text in _SENTENCE.split(entry.text) if text]
    lengths = [len(text.split()) for text in sentences]
    longest = max(sentences, key=lambda text: len(text.split()))
    return (
        f"{len(sentences)} sentences, {mean(lengths):.1f} words on average, "
        f"the longest has {max(lengths)}: {longest}"
    )


def error_strings(source: Path = SOURCE) -> Iterator[Told]:
    """Of each class of errors: when it is raised, its remedy, and what its text is made of."""
    for _, tree in _modules(source):
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and _is_error(node):
                when = (ast.get_docstring(node) or "").partition("\n")[0]
                texts = [when, *_literals(node)]
                yield from (Told(node.name, text) for text in texts if _is_prose(text))


def call_strings(source: Path = SOURCE) -> Iterator[Told]:
    """What is given to errors where they are raised, and under keywords that reach a user."""
    for name, tree in _modules(source):
        seen: set[str] = set()
        for node in ast.walk(tree):
            for text in _given(node):
                if _is_prose(text) and text not in seen:
                    seen.add(text)
                    yield Told(name, text)


def help_strings(source: Path = SOURCE) -> Iterator[Told]:
    """Of commands, arguments and options."""
    for name, tree in _modules(source):
        commands = _commands(tree)
        for node in ast.walk(tree):
            if isinstance(node, _FUNCTION) and (node.name in commands or _is_command(node)):
                yield Told(node.name, " ".join((ast.get_docstring(node) or "").split()))
            if isinstance(node, ast.keyword) and node.arg == "help":
                yield from (Told(name, text) for text in [_text(node.value)] if text)


def other_strings(source: Path = SOURCE) -> Iterator[Told]:
    """Every other text of two words or more: findings, explanations, what commands print."""
    for name, tree in _modules(source):
        for text in dict.fromkeys(_literals(tree)):
            if _WORDS.search(text) and not _SOURCE_TEXT.search(text):
                yield Told(name, text)


def metric_strings() -> Iterator[Told]:
    """What each metric counts, and the question that it answers."""
    own = [spec for app in applications() for spec in app.metrics]
    for spec in (*measures.CATALOGUE, *own):
        yield from (Told(spec.name, text) for text in (spec.sentence, spec.question))


def http_strings(api: dict[str, Any]) -> Iterator[Told]:
    """Of subjects, operations, parameters, answers, bodies and their fields."""
    yield from (Told(tag["name"], tag["description"]) for tag in api["tags"])
    for path, methods in api["paths"].items():
        for method, operation in methods.items():
            yield Told(f"{method.upper()} {path}", operation.get("description", ""))
    yield from _once(_parameters_and_answers(api))
    for name, schema in sorted(api["components"]["schemas"].items()):
        yield Told(name, schema.get("description", ""))
        for field, inner in schema.get("properties", {}).items():
            yield Told(f"{name}.{field}", inner.get("description", ""))


def page_strings(source: Path = SOURCE) -> Iterator[Told]:
    """What the pages of the dashboard show, and what their scripts say."""
    for path in sorted(source.rglob("*.html")):
        for text in template_strings(path):
            yield Told(path.relative_to(source).as_posix().replace("templates/", ""), text)
    for path in sorted(source.rglob("static/*.js")):
        for text in script_strings(path):
            yield Told(path.relative_to(source).as_posix().replace("static/", ""), text)


def document_titles() -> Iterator[Told]:
    for path in sorted((ROOT / "docs").rglob("*.md")):
        if path.parent.name in ("decisions", "reference"):
            continue
        first = path.read_text().partition("\n")[0]
        if first.startswith("# "):
            yield Told(path.relative_to(ROOT / "docs").as_posix(), first.removeprefix("# "))


def _part(title: str, told: list[Told]) -> str:
    lines = [f"- `{entry.of}`: {_plain(entry.text)}\n" for entry in told if entry.text]
    return "".join([f"\n## {title}\n\n", *lines])


def _plain(text: str) -> str:
    """As one line of Markdown that shows it as it is."""
    return re.sub(r"([\\*_<>\[\]|])", r"\\\1", " ".join(text.split()))


def _once(told: Iterable[Told]) -> Iterator[Told]:
    """Each text under the first name that has it."""
    seen: set[str] = set()
    for entry in told:
        if entry.text not in seen:
            seen.add(entry.text)
            yield entry


def _parameters_and_answers(api: dict[str, Any]) -> Iterator[Told]:
    for methods in api["paths"].values():
        for operation in methods.values():
            for param in operation.get("parameters", []):
                about = param.get("description") or param["schema"].get("description", "")
                yield Told(f"{param['name']} ({param['in']})", about)
            for status, answer in operation["responses"].items():
                yield Told(status, answer["description"].replace("Successful Response", ""))


def _modules(source: Path) -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(source.rglob("*.py")):
        yield path.relative_to(source).as_posix(), ast.parse(path.read_text())


def _literals(node: ast.AST) -> Iterator[str]:
    """The texts in *node*, each as a whole; without docstrings and other texts that stand alone."""
    if isinstance(node, ast.expr) and (text := _text(node)):
        yield text
        if not isinstance(node, ast.JoinedStr):
            return
    for below in ast.iter_child_nodes(node):
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
            continue
        if not (isinstance(node, ast.JoinedStr) and isinstance(below, ast.Constant)):
            yield from _literals(below)


def _is_error(node: ast.ClassDef) -> bool:
    """A class with a code of its own: what all errors have, and nothing else."""
    return any(
        isinstance(statement, ast.Assign)
        and isinstance(statement.value, ast.Constant)
        and ast.unparse(statement.targets[0]) == "code"
        for statement in node.body
    )


def _given(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
        yield from map(_text, node.exc.args)
    if isinstance(node, ast.keyword) and node.arg in _SAID:
        yield _text(node.value)
    if isinstance(node, ast.Assign) and "reason" in ast.unparse(node.targets[0]):
        yield _text(node.value)


def _commands(tree: ast.Module) -> set[str]:
    """The functions that are made commands by `verb(app, …)(function)`."""
    return {
        node.args[0].id
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Call)
        and ast.unparse(node.func.func) == "verb"
        and isinstance(node.args[0], ast.Name)
    }


def _is_command(node: ast.AsyncFunctionDef | ast.FunctionDef) -> bool:
    return any(
        "verb(" in ast.unparse(decorator) or ".command(" in ast.unparse(decorator)
        for decorator in node.decorator_list
    )


def _is_prose(text: str) -> bool:
    return " " in text.strip()


def _text(node: ast.expr) -> str:
    """What a literal says, with … for what is filled in; empty for anything else."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=values):
            return "".join(
                _text(part) if isinstance(part, ast.Constant) else "{…}" for part in values
            )
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _text(left) + _text(right)
        case ast.IfExp(body=body, orelse=other):
            return " / ".join(filter(None, (_text(body), _text(other))))
        case _:
            return ""


if __name__ == "__main__":
    sys.stdout.write(figures() + "\n")
