"""The pages about the command line and its settings, read off the code."""

from collections.abc import Iterator
from typing import Any

import typer.main

from towpath.cli.config import groups, shown
from towpath.cli.main import app, nouns
from towpath.console import exits
from towpath.settings import Core, leaves
from towpath.settings.sources import Leaf

COMMANDS = """# The command line

`towpath --help` lists the commands; `towpath COMMAND --help` explains one, with examples.
`towpath --install-completion` sets up completion in your shell.

Data goes to stdout, everything else to stderr. With `--json`, answers are one object per line. So
are errors, on stderr, with `refused`, `message`, `do` and `retry`. Colours and progress bars appear
only in a terminal; `NO_COLOR` turns colours off. Write durations as `250ms`, `10s`, `1h30m` or
`7d`. Name a job as `QUEUE/ID`, or by its id alone, which is then searched for in every queue.

## Exit codes

| code | meaning |
|---|---|
"""

COMMON = """
## Options of every command

They may also come before the command: `towpath --json queues`.

| option | meaning |
|---|---|
"""

SETTINGS = """# Settings

`towpath config` shows every value and where it comes from. Flags override variables, variables
override the file, and the file overrides the defaults. The file is `towpath.toml` in the current
directory, or `[tool.towpath]` in its `pyproject.toml`; `--config FILE` names another file. An
unknown setting is an error, which suggests the nearest name.

    # towpath.toml
    url = "redis://queue.example:6379"

    [worker]
    concurrency = 50
    grace = "40s"

Secrets can be kept in files: for each secret there is a variable that names its file, see below.
Towpath never prints secrets. `REDIS_URL` is used if `TOWPATH_URL` is not set, and `DATABASE_URL` if
`TOWPATH_DATABASE` is not set.

`towpath worker` uses the URL that its app was made with; `--url` overrides it.

| setting | variable | default | meaning |
|---|---|---|---|
"""

SECRETS = """
## Secrets

These settings are never shown: not by `towpath config`, not in logs, not in errors. The variable
names a file that holds the secret; for a list, the file has one secret per line.

| setting | variable with the name of the file |
|---|---|
"""


def commands_page() -> str:
    """Every verb with its arguments, options and examples."""
    root: Any = typer.main.get_command(app)
    common = {name: param for param in root.params for name in param.opts if name in _COMMON}
    page = COMMANDS + "".join(f"| {code} | {text} |\n" for code, text in exits.MEANINGS.items())
    page += COMMON + "".join(
        f"| `{_names(param)}` | {_help(param)} |\n" for param in common.values()
    )
    return page + "".join(_section(words, command) for words, command in _verbs(root, "towpath"))


_COMMON = ("--url", "--json", "--timeout", "--config", "--debug")


def _verbs(command: Any, words: str) -> Iterator[tuple[str, Any]]:
    for name, below in nouns(command).items():
        if not getattr(below, "no_args_is_help", False):
            yield f"{words} {name}", below
        yield from _verbs(below, f"{words} {name}")


def _section(words: str, command: Any) -> str:
    text, _, examples = command.help.partition("\b\nExamples:\n")
    asked = command.get_params(typer.Context(command))
    shown = [param for param in asked if not getattr(param, "hidden", False)]
    params = [param for param in shown if not set(param.opts) & {*_COMMON, "--help"}]
    lines = [f"\n## {words}\n", *map(_paragraph, text.strip().split("\n\n"))]
    lines += ["    " + line.strip().removeprefix("$ ") for line in examples.strip().splitlines()]
    if params:
        lines += ["", "| | |", "|---|---|"]
        lines += [f"| `{_names(param)}` | {_help(param)}{_default(param)} |" for param in params]
    return "\n".join(lines) + "\n"


def _paragraph(text: str) -> str:
    """As it is in the docstring; what must keep its lines is set apart."""
    if text.startswith("\b\n"):
        text = "\n".join(f"    {line}" for line in text.splitlines()[1:])
    return f"{text}\n"


def _names(param: Any) -> str:
    if param.param_type_name == "argument":
        return param.metavar or param.name.upper()
    metavar = "" if param.is_flag else f" {param.metavar or param.name.upper()}"
    return ", ".join([*param.opts, *param.secondary_opts]) + metavar.replace("|", "\\|")


def _help(param: Any) -> str:
    return (param.help or "").replace("  [", " [").replace("|", "\\|")


def _default(param: Any) -> str:
    value = param.default
    unsaid = value is None or value is False or callable(value) or not str(value).strip()
    return "" if unsaid or param.required else f" Default: `{value}`."


def settings_page() -> str:
    """Every setting with its variables, default and sentence; then every secret."""
    found = list(leaves(groups(Core())))
    page = SETTINGS + "".join(
        f"| `{leaf.name}` | {_variables(leaf)} | {_code(shown(leaf.field.default))} "
        f"| {leaf.about} |\n"
        for leaf in found
    )
    secret = [leaf for leaf in found if leaf.field.info.secret]
    return page + SECRETS + "".join(f"| `{leaf.name}` | {_files(leaf)} |\n" for leaf in secret)


def _variables(leaf: Leaf) -> str:
    return ", ".join(map(_code, leaf.variables))


def _files(leaf: Leaf) -> str:
    return ", ".join(f"`{variable}_FILE`" for variable in leaf.variables)


def _code(text: str) -> str:
    return f"`{text}`" if text else ""
