"""Pages of the site that are made when it is built: the Python API, and the scripts.

A copy in the repository would be a second place for every docstring and every header of a script.
Which names of Python are promised, `python.md` says. A member whose docstring begins with
`Internal:` is left out.
"""

import ast
import inspect
import re
import sys
from collections.abc import Iterator
from enum import Enum
from functools import cached_property
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from textwrap import dedent
from typing import Any, is_typeddict

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from towpath.engine.script import ARGS, header_of, lua_text

PAGE = "reference/python-api.md"
SCRIPTS_PAGE = "reference/scripts.md"
PROMISED = Path(__file__).with_name("python.md")
HEAD = """# Python API

Every name whose import path is [promised](python.md), with its signature and docstring. The options
of a job (`**options`) are the fields of `JobOptions`. A duration is a `timedelta`, a number of
seconds, or text such as `"10s"`.
"""
SCRIPTS_HEAD = """# Scripts

The engine reads and changes queues with these scripts only. `python -m towpath.engine.script NAME`
prints the text that runs. This page shows their headers: keys, arguments, answers, the moves that a
job may make, the cost, and what happens when the memory of the server is full. Tests compare the
headers with the code. [The keys](keys-and-scripts.md)
"""
PARTS = {
    "engine.queues": "towpath.engine.queues.Queues",
    "engine.inspect": "towpath.engine.inspect.Inspector",
    "engine.events": "towpath.engine.follow.Events",
    "engine.schedules": "towpath.engine.schedules.Schedules",
    "engine.workers": "towpath.engine.worker_registry.Workers",
    "engine.space(…)": "towpath.engine.space.Space",
    "space.at(…)": "towpath.engine.space.SpaceRecord",
    "ledger.jobs": "towpath.ledger.records.jobs.Jobs",
    "ledger.outbox": "towpath.ledger.outbox.outbox.Outbox",
    "ledger.keys": "towpath.ledger.keys.keys.ApiKeys",
}
"""Classes that users meet as a part of one that is promised, by how they get there."""
_WIDE = 100
_ALIAS = "\nA name for annotations.\n"
_UNSAYABLE = re.compile(r"<[\w. ]+ at 0x\w+>")


def on_files(files: Files, config: MkDocsConfig) -> None:
    """The pages are the site's."""
    files.append(File.generated(config, PAGE, content=api_page()))
    files.append(File.generated(config, SCRIPTS_PAGE, content=scripts_page()))


def api_page() -> str:
    """One section per import path, one entry per name, then what a class offers."""
    names = "".join(
        f"\n## {module}\n" + "".join(_entry(module, name) for name in names)
        for module, names in promised(PROMISED.read_text()).items()
        if names
    )
    return f"{HEAD}{names}\n## Parts of an engine and of a ledger\n" + "".join(
        _part(way, *path.rsplit(".", 1)) for way, path in PARTS.items()
    )


def _part(way: str, module: str, name: str) -> str:
    """One that is reached by an attribute or a method of another, and never made by a user."""
    kind = getattr(import_module(module), name)
    told = _docs(kind)
    members = "".join(_member(name, *one) for one in members_of(kind) if not _is_internal(one[1]))
    return f"\n### {way}\n{told}{members}"


UNSTABLE = "\n## Not stable yet\n"
"""Below this heading are names that pages and examples use, and that are not promised."""


def promised(page: str) -> dict[str, list[str]]:
    """The names that the page of import paths promises, by module."""
    return listed(page.partition(UNSTABLE)[0])


def listed(page: str) -> dict[str, list[str]]:
    """The names that the page of import paths lists, by module, promised or not."""
    found: dict[str, list[str]] = {}
    module = ""
    for line in page.splitlines():
        if line.startswith(("| `", "| |")):
            _, path, names, _ = line.split("|")
            module = path.strip(" `") or module
            found.setdefault(module, []).extend(names.split("`")[1::2])
    return found


def _entry(module: str, name: str) -> str:
    offered = getattr(import_module(module), name)
    title = f"\n### {name}\n"
    if inspect.isclass(offered) and not offered.__module__.startswith("towpath"):
        return f"{title}\nA name for `{offered.__module__}.{offered.__name__}`.\n"
    if inspect.isclass(offered):
        return title + _class(name, offered)
    if inspect.isroutine(offered):
        return f"{title}\n{_fenced(_signature(name, offered))}{_docs(offered)}"
    if inspect.ismodule(offered):
        below = "".join(_entry(offered.__name__, each) for each in offered.__all__)
        return title + _docs(offered) + below.replace("\n### ", f"\n#### {name}.")
    if isinstance(offered, int):
        return f"{title}\n{_fenced(f'{name} = {offered!r}')}"
    return title + _ALIAS + _alias_docs(name, offered)


def _alias_docs(name: str, alias: Any) -> str:
    """The string below the line that makes the alias."""
    for module in [module for path, module in sys.modules.items() if path.startswith("towpath.")]:
        if vars(module).get(name) is alias and (module.__file__ or "").endswith(".py"):
            for line, below in pairwise(ast.parse(inspect.getsource(module)).body):
                if _field(line) == name and (text := _string(below)) is not None:
                    return f"\n{' '.join(text.split())}\n"
    return ""


def _class(name: str, kind: type) -> str:
    told = _sentences(kind)
    if issubclass(kind, Enum):
        lines = [
            f"- `{member.name}` = `{member.value!r}`"
            + (f": {told[member.name]}" if member.name in told else "")
            for member in kind
        ]
        return _docs(kind) + "\n" + "\n".join(lines) + "\n"
    fields = "".join(f"- `{field}`: {sentence}\n" for field, sentence in told.items())
    members = "".join(_member(name, *one) for one in members_of(kind) if not _is_internal(one[1]))
    return f"\n{_fenced(_shape(name, kind))}{_docs(kind)}" + (fields and f"\n{fields}") + members


def _sentences(kind: type) -> dict[str, str]:
    """What is written under each public field, or is the last word of its annotation."""
    found: dict[str, str] = {}
    for each in reversed([one for one in kind.__mro__ if one.__module__.startswith("towpath")]):
        [tree] = ast.parse(dedent(inspect.getsource(each))).body
        body: list[ast.AST | None] = [*(tree.body if isinstance(tree, ast.ClassDef) else []), None]
        for field, below in pairwise(body):
            name, text = _field(field), _string(below)
            if name is None or name.startswith("_"):
                continue
            if text is None and isinstance(field, ast.AnnAssign):
                text = _string((_annotated(field.annotation) or [None])[-1])
            if text is not None:
                found[name] = " ".join(text.split())
    return found


def _field(node: ast.AST | None) -> str | None:
    match node:
        case ast.AnnAssign(target=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name)]):
            return name
        case _:
            return None


def _string(node: ast.AST | None) -> str | None:
    match node:
        case ast.Expr(value=ast.Constant(value=str(text))) | ast.Constant(value=str(text)):
            return text
        case _:
            return None


def _annotated(annotation: ast.AST) -> list[ast.expr]:
    """The parts of an `Annotated[…]`."""
    match annotation:
        case ast.Subscript(value=ast.Name(id="Annotated"), slice=ast.Tuple(elts=parts)):
            return parts
        case _:
            return []


def _is_internal(member: Any) -> bool:
    inner: Any = getattr(member, "__func__", member)
    return (inspect.getdoc(inner) or "").startswith("Internal:")


def _shape(name: str, kind: Any) -> str:
    """How one is made. Fields are read as they are written: their types need not be loaded."""
    is_table = is_typeddict(kind)
    fields = getattr(kind, "__struct_fields__", ())
    if not fields and not is_table:
        return _signature(name, kind)
    said: dict[str, Any] = {}
    for each in (kind,) if is_table else reversed(kind.__mro__):
        said |= inspect.get_annotations(each)
    names = [field for field in said if is_table or field in fields]
    return _lines(name, [f"{field}: {_text(said[field])}" for field in names], "")


def _text(annotation: Any) -> str:
    """An annotation as it was written."""
    written = getattr(annotation, "__forward_arg__", annotation)
    if not isinstance(written, str):
        return inspect.formatannotation(written)
    parts = _annotated(ast.parse(written, mode="eval").body)
    return ast.unparse(parts[0]) if parts else written


def _member(owner: str, name: str, member: Any) -> str:
    if isinstance(member, property | cached_property):
        return f"\n#### {owner}.{name}\n\n{_docs(member)}"
    inner = member.__func__ if isinstance(member, classmethod | staticmethod) else member
    waits = "await " if inspect.iscoroutinefunction(inner) else ""
    return f"\n#### {owner}.{name}\n\n{_fenced(_signature(waits + name, inner))}{_docs(inner)}"


def members_of(kind: type) -> Iterator[tuple[str, Any]]:
    """What it offers, its own and what it has from classes of ours, each once."""
    seen: set[str] = set()
    for each in kind.__mro__:
        if each.__module__.startswith("towpath"):
            for name, member in vars(each).items():
                is_known = isinstance(
                    member, property | cached_property | classmethod | staticmethod
                )
                if (
                    name.startswith("_")
                    or name in seen
                    or not (is_known or inspect.isfunction(member))
                ):
                    continue
                seen.add(name)
                yield name, member


def _signature(name: str, function: Any) -> str:
    """As one would write it; `self` is nobody's business."""
    try:
        said = inspect.signature(function)
    except (TypeError, ValueError):
        return name
    known = [one for one in said.parameters.values() if one.name not in ("self", "cls")]
    written = [_UNSAYABLE.sub("…", str(one)).replace("'", "") for one in known]
    for at, one in enumerate(known):
        if one.kind is one.VAR_POSITIONAL:
            break
        if one.kind is one.KEYWORD_ONLY:
            written.insert(at, "*")
            break
    nothing = said.return_annotation in (said.empty, None, "None")
    return _lines(name, written, "" if nothing else f" -> {_text(said.return_annotation)}")


def _lines(name: str, arguments: list[str], answer: str) -> str:
    """In one line, or in a line per argument where that is too long."""
    line = f"{name}({', '.join(arguments)}){answer}"
    if len(line) <= _WIDE:
        return line
    return f"{name}(\n" + "".join(f"    {one},\n" for one in arguments) + f"){answer}"


def _fenced(text: str) -> str:
    return f"```py\n{text}\n```\n"


def _docs(documented: Any) -> str:
    text = inspect.getdoc(documented)
    return f"\n{text}\n" if text else ""


def scripts_page() -> str:
    """One section per script, by name."""
    return SCRIPTS_HEAD + "".join(map(_script, sorted(ARGS)))


def _script(name: str) -> str:
    header = header_of(lua_text(name))
    title, _, sentence = header.title.partition(": ")
    said = header.fields
    kept = {word: said[word] for word in ("keys", "args", "reply", "moves", "cost", "full")
            if word in said}  # fmt: skip
    lines = [
        f"{word if at == 0 else '':<7}{line}".rstrip()
        for word, many in kept.items()
        for at, line in enumerate(many)
    ]
    told = f"{sentence[:1].upper()}{sentence[1:]}"
    return f"\n## {title}\n\n{told}\n\n```text\n" + "\n".join(lines) + "\n```\n"
