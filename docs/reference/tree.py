"""The tree of the code in ARCHITECTURE.md: each module by the first sentence of its docstring."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "ARCHITECTURE.md"
_SOURCE = ROOT / "src" / "towpath"
_BEGIN = "<!-- tree: written by `make docs` from the modules' docstrings -->\n"
_END = "<!-- end of the tree -->\n"
_NAMES_WIDE = 26


def architecture_page() -> str:
    """ARCHITECTURE.md with the tree as the code is now."""
    page = PAGE.read_text()
    before, _, rest = page.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    if not after:
        raise ValueError("ARCHITECTURE.md has lost the marks of its tree")
    return f"{before}{_BEGIN}\n    src/towpath/\n{''.join(_lines(_SOURCE, 1))}\n{_END}{after}"


def _lines(folder: Path, depth: int) -> Iterator[str]:
    """Modules first, then packages: what is small stands before what is large."""
    for module in sorted(folder.glob("*.py")):
        if module.name != "__init__.py":
            yield _line(module.name, module, depth)
    for package in sorted(folder.iterdir()):
        if (package / "__init__.py").exists():
            yield _line(f"{package.name}/", package / "__init__.py", depth)
            if package.name != "versions":
                yield from _lines(package, depth + 1)


def _line(name: str, module: Path, depth: int) -> str:
    text = ast.get_docstring(ast.parse(module.read_text())) or ""
    sentence = " ".join(text.partition("\n\n")[0].split())
    sentence = sentence.partition(". ")[0].rstrip(".")
    return f"    {'  ' * depth}{name:<{_NAMES_WIDE - 2 * depth}} {sentence}".rstrip() + "\n"
