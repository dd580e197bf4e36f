"""The map of rooms in ARCHITECTURE.md: each package by the first sentence of its docstring."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "ARCHITECTURE.md"
_SOURCE = ROOT / "src" / "towpath"
_BEGIN = "<!-- rooms: written by `make docs` from the packages' docstrings -->\n"
_END = "<!-- end of the rooms -->\n"
_NAMES_WIDE = 18
_DEPTH = 2


def architecture_page() -> str:
    """Return ARCHITECTURE.md with the map of the code as it is now."""
    page = PAGE.read_text()
    before, _, rest = page.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    if not after:
        raise ValueError("ARCHITECTURE.md has lost the marks of its map")
    return f"{before}{_BEGIN}\n    src/towpath/\n{''.join(_lines(_SOURCE, 1))}\n{_END}{after}"


def _lines(folder: Path, depth: int) -> Iterator[str]:
    for package in sorted(folder.iterdir()):
        if (package / "__init__.py").exists():
            yield _line(f"{package.name}/", package / "__init__.py", depth)
            if depth < _DEPTH:
                yield from _lines(package, depth + 1)


def _line(name: str, module: Path, depth: int) -> str:
    text = ast.get_docstring(ast.parse(module.read_text())) or ""
    sentence = " ".join(text.partition("\n\n")[0].split())
    sentence = sentence.partition(". ")[0].rstrip(".")
    return f"    {'  ' * depth}{name:<{_NAMES_WIDE - 2 * depth}} {sentence}".rstrip() + "\n"
