"""Linters that look at a stranger's commit and take no orders from it.

A linter takes its configuration from the directory that it looks at, and that is the commit: it may
name plug-ins, which are code, a place to write to, or findings to hide. Here are those that can be
told to take none of it, and how. Any other runs what the commit says, and so is asked for by name.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple


class NotIsolated(Exception):
    """The commit could give orders to this linter; the message says why, and what to do."""


class _Tool(NamedTuple):
    """A linter, and the arguments by which it takes nothing from the commit."""

    config: str
    """The option that names a configuration of one's own, instead of all others."""
    without: str
    """What to say if there is none."""
    always: tuple[str, ...] = ()
    verb: str = ""


_TOOLS = {
    "flake8": _Tool("--config", "--isolated"),
    "mypy": _Tool("--config-file", "--config-file=", ("--cache-dir=/dev/null",)),
    "ruff": _Tool("--config", "--isolated", ("--no-cache", "--no-fix"), verb="check"),
}
# Not pylint: it imports modules of its own while the commit's directory is on its path (isort.py).
# Not eslint: its configuration is a program.


def isolated(command: Sequence[str]) -> list[str]:
    """*command*, a linter with its arguments, so that it takes nothing from where it looks.

    What is given already is not given again. Raises NotIsolated for one that is not known, and for
    a configuration that would be the commit's own.
    """
    program, *rest = command
    head = [program]
    if Path(program).name.startswith("python") and rest[:1] == ["-m"] and len(rest) > 1:
        # Not -I: a linter may be installed for this user alone. Older Pythons refuse -P.
        head, rest = [program, "-P", *rest[:2]], rest[2:]
    name = Path(head[-1]).name
    tool = _TOOLS.get(name)
    if tool is None:
        known = ", ".join(sorted(_TOOLS))
        raise NotIsolated(
            f"{name} may run what the commit says. Linters that do not are {known}; for others pass"
            " --trust-commits, if you trust everybody who may open a pull request, or a sandbox"
        )
    if tool.verb:
        if rest[:1] != [tool.verb]:
            raise NotIsolated(f"only `{name} {tool.verb}` looks without changing anything")
        head, rest = [*head, tool.verb], rest[1:]
    own = [value for value in _values(rest, tool.config) if not (tool.verb and "=" in value)]
    for path in own:
        if path and not Path(path).is_absolute():
            raise NotIsolated(
                f"{tool.config} must be a whole path: {path} would be a file of the commit"
            )
    added = tool.always if own else (tool.without, *tool.always)
    return [*head, *(word for word in added if word not in rest), *rest]


def _values(words: Sequence[str], option: str) -> Iterator[str]:
    """What *option* is given as: `--option value`, or `--option=value`."""
    for place, word in enumerate(words):
        if word == option:
            yield words[place + 1] if place + 1 < len(words) else ""
        elif word.startswith(f"{option}="):
            yield word.partition("=")[2]
