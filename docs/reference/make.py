"""Writes the reference pages that can be read off the code: `make docs`."""

import ast
import inspect
import textwrap
from itertools import pairwise
from pathlib import Path

from towpath import errors
from towpath.engine.options import QueueOptions
from towpath.errors import TowpathError

HERE = Path(__file__).parent


ERRORS = """# Errors

All are in `towpath.errors` and derive from `TowpathError`: `code` is stable, `remedy` is the way
out, `retry` says whether the same again can help (`safe`: the outcome is unknown, a repeat with the
same job id adds nothing).

| error | code | when | what to do | retry |
|---|---|---|---|---|
"""

OPTIONS = """# Queue options

`engine.configure(queue, QueueOptions(…))` at first use; the first to use a queue decides.
`engine.reconfigure` changes them, in force at once for everybody.

| option | default | meaning |
|---|---|---|
"""


def errors_page() -> str:
    """One row per error, in the order of the module."""
    kinds = [kind for kind in vars(errors).values() if inspect.isclass(kind)]
    return ERRORS + "".join(
        f"| `{kind.__name__}` | `{kind.code}` | {_first_line(kind)} | {kind.remedy} "
        f"| {kind.retry} |\n"
        for kind in kinds
        if issubclass(kind, TowpathError) and kind is not TowpathError
    )


def options_page() -> str:
    """One row per option of a queue, with its default and its sentence."""
    sentences, defaults = _field_sentences(QueueOptions), QueueOptions()
    return OPTIONS + "".join(
        f"| `{name}` | `{getattr(defaults, name)}` | {sentences[name]} |\n"
        for name in QueueOptions.__struct_fields__
    )


def _first_line(kind: type) -> str:
    return (inspect.getdoc(kind) or "").partition("\n")[0]


def _field_sentences(kind: type) -> dict[str, str]:
    """The text under each field of a class."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(kind)))
    [body] = [node.body for node in tree.body if isinstance(node, ast.ClassDef)]
    found: dict[str, str] = {}
    for field, text in pairwise(body):
        match field, text:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(sentence))),
            ):
                found[name] = " ".join(sentence.split())
            case _:
                pass
    return found


if __name__ == "__main__":
    (HERE / "errors.md").write_text(errors_page())
    (HERE / "queue-options.md").write_text(options_page())
