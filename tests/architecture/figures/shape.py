"""What can be read off the source: files, lines of code, small modules that one other reads."""

import ast
import io
import tokenize
from collections import defaultdict
from pathlib import Path

from tests.architecture.sources import SOURCE, lua_files, python_files

SMALL = 60
"""Lines of a file, all of them: below that a module with one reader belongs to its reader."""
APPLICATIONS = SOURCE / "apps"
"""Each folder in there brings what it needs; the house around them is what must not grow unseen."""
REGISTRIES = {
    "towpath.cli.main": "nouns of the command line",
    "towpath.server.build": "routes, mounted one by one",
    "towpath.ledger.database.migrations": "migrations, found by their names",
    "towpath.apps": "applications",
}
"""Modules whose business it is to import one small module each; what only they import is aside."""
REASONS: dict[str, str] = {
    "towpath.engine.scratch": "removes the keys of a queue, which only the engine knows",
}
"""Small modules with one importer that stay, and why."""
_NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}


def files(*, applications: bool) -> list[Path]:
    """Python files of the applications, or of the house around them; without `__init__`."""
    found = [path for path in python_files(SOURCE) if path.name != "__init__.py"]
    return [path for path in found if _of_an_application(path) == applications]


def python_lines(*, applications: bool) -> int:
    """Lines of Python code: without docstrings, comments and blank lines."""
    found = [path for path in python_files(SOURCE) if _of_an_application(path) == applications]
    return sum(code_lines(path.read_text()) for path in found)


def lua_lines(*, applications: bool) -> int:
    """Lines of Lua code: without comments and blank lines."""
    found = [path for path in lua_files() if _of_an_application(path) == applications]
    lines = (line.strip() for path in found for line in path.read_text().splitlines())
    return sum(1 for line in lines if line and not line.startswith("--"))


def _of_an_application(path: Path) -> bool:
    return APPLICATIONS in path.parent.parents


def code_lines(text: str) -> int:
    """Lines of *text* on which there is code; strings that stand alone say something to readers."""
    coded: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _NO_CODE:
            coded.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Expr(ast.Constant(str()), lineno=first, end_lineno=int(last)):
                coded.difference_update(range(first, last + 1))
            case _:
                pass
    return len(coded)


# ── who imports whom ─────────────────────────────────────────────────────────────────────


def small_with_one_importer() -> dict[str, str]:
    """Modules under SMALL lines with exactly one importer in the package, and that importer."""
    modules = {module_name(path): path for path in python_files(SOURCE)}
    importers: defaultdict[str, set[str]] = defaultdict(set)
    for name, path in modules.items():
        for imported in _imported(path.read_text(), modules):
            importers[imported].add(name)
    found: dict[str, str] = {}
    for name, path in sorted(modules.items()):
        short = len(path.read_text().splitlines()) < SMALL
        by = importers[name] - {name}
        if path.name != "__init__.py" and short and len(by) == 1 and not by & set(REGISTRIES):
            found[name] = by.pop()
    return found


def module_name(path: Path) -> str:
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imported(text: str, modules: dict[str, Path]) -> set[str]:
    """What *text* imports, anywhere in it: `from a import b` is `a.b` where that is a module."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                found.add(inner if inner in modules else node.module)
    return found & modules.keys()
