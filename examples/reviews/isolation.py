"""Run linters on a stranger's commit without using the commit's configuration.

A linter reads its configuration from the directory that it checks, which here is the commit. This
configuration could name plug-ins, which are code, a file to write to, or findings to hide. This
module has the linters that can ignore it, and their options. Any other linter needs
--trust-commits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple


class NotIsolated(Exception):
    """The commit could control this linter; the message says why, and what to do."""


class _Tool(NamedTuple):
    """A linter, and the arguments that make it ignore the commit's configuration."""

    config: str
    """The option that sets your own configuration instead of all others."""
    without: str
    """The argument to add if you have no configuration."""
    always: tuple[str, ...] = ()
    verb: str = ""


_TOOLS = {
    "flake8": _Tool("--config", "--isolated"),
    "mypy": _Tool("--config-file", "--config-file=", ("--cache-dir=/dev/null",)),
    "ruff": _Tool("--config", "--isolated", ("--no-cache", "--no-fix"), verb="check"),
}
# Not pylint: it imports modules while the commit's directory is on its path (isort.py).
# Not eslint: its configuration is a program.


def isolated(command: Sequence[str]) -> list[str]:
    """*command*, a linter with its arguments, so that it ignores the commit's configuration.

    Arguments that are there already are not added again. Raises NotIsolated for an unknown linter,
    and for a configuration that would be a file of the commit.
    """
    program, *rest = command
    head = [program]
    if Path(program).name.startswith("python") and rest[:1] == ["-m"] and len(rest) > 1:
        # Not -I: a linter may be installed for this user only. Older versions of Python refuse -P.
        head, rest = [program, "-P", *rest[:2]], rest[2:]
    name = Path(head[-1]).name
    tool = _TOOLS.get(name)
    if tool is None:
        known = ", ".join(sorted(_TOOLS))
        raise NotIsolated(
            f"{name} may run code of the commit. Linters that do not are {known}; for others pass"
            " --trust-commits, if you trust everybody who may open a pull request, or a sandbox"
        )
    if tool.verb:
        if rest[:1] != [tool.verb]:
            raise NotIsolated(f"use `{name} {tool.verb}`: other commands may change files")
        head, rest = [*head, tool.verb], rest[1:]
    own = [value for value in _values(rest, tool.config) if not (tool.verb and "=" in value)]
    for path in own:
        if path and not Path(path).is_absolute():
            raise NotIsolated(
                f"{tool.config} must be an absolute path: {path} would be a file of the commit"
            )
    added = tool.always if own else (tool.without, *tool.always)
    return [*head, *(word for word in added if word not in rest), *rest]


def _values(words: Sequence[str], option: str) -> Iterator[str]:
    """The values of *option*: `--option value`, or `--option=value`."""
    for place, word in enumerate(words):
        if word == option:
            yield words[place + 1] if place + 1 < len(words) else ""
        elif word.startswith(f"{option}="):
            yield word.partition("=")[2]
