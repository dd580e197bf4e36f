"""Every command line on a page and in a help text is accepted by the real parser: the command, its
options, and the value of each option. Those of `examples/deploy` are in `test_deploy.py`.
"""

import re
import shlex
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import pytest
import typer.main

from tests.architecture.sources import ROOT
from towpath.apps.issues.model import IssueState
from towpath.apps.reviews.model import ReviewState
from towpath.apps.uploads.client.cli import read_size
from towpath.apps.uploads.model import Status
from towpath.cli import config
from towpath.cli.main import app, nouns
from towpath.cli.queues import changed
from towpath.clock import parse_duration, seconds
from towpath.console import arguments
from towpath.engine.options import QueueOptions
from towpath.engine.schedule import Cron
from towpath.engine.spelling import read_retry
from towpath.engine.states import State
from towpath.errors import InvalidOption, TowpathError
from towpath.settings import load

PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs" / "how-to").glob("*.md")),
    *sorted((ROOT / "docs" / "explanation").glob("*.md")),
    *sorted((ROOT / "examples").rglob("*.md")),
    *sorted(path for path in (ROOT / "examples").rglob("*") if path.suffix in (".py", ".sh")),
]
OF_ANOTHER = "write-an-application.md"
"""Its command is that of the application that it shows."""
FOREIGN = {
    "--maxmemory-policy", "--no-fix", "--no-cache", "--isolated", "--trust-commits", "--option",
}  # fmt: skip
"""Options of other programs that pages mention, and one that stands for any."""
SERVER_ANSWERS_WITHIN = seconds(60)
"""`--timeout` is the wait for Redis or the HTTP server, never the time that some work may take."""

UsageError: Any = typer.BadParameter.__base__


class Line(NamedTuple):
    """The words after `towpath`."""

    words: tuple[str, ...]
    is_mention: bool
    """Whether it is named in a sentence, where arguments may be left out."""


# ── finding command lines ────────────────────────────────────────────────────────────────

_BLOCK = re.compile(r"^(?: {4,}|\$ )?((?:.*[\s/(\"'])?towpath [a-z-].*)$")
_FENCE = re.compile(r"^\s*```(\w*)")
_SHELL = ("", "console", "sh")
_INLINE = re.compile(r"`([^`\n]*\btowpath [a-z-][^`\n]*)`")
_SUBSTITUTED = re.compile(r"\$\(([^()]*)\)")
_OPTION = re.compile(r"`(--[a-z][a-z-]*)(?: ([^`]+))?`")


def lines_of(path: Path) -> Iterator[Line]:
    """The command lines of a page: in blocks and in sentences."""
    if path.suffix != ".md":
        yield from _in_source(path)
        return
    language: str | None = None
    for text in path.read_text().splitlines():
        if fence := _FENCE.match(text):
            language = fence[1] if language is None else None
        elif language is not None or text.startswith("    "):
            if language in (None, *_SHELL) and (found := _BLOCK.match(text)):
                yield from commands_in(found[1], is_mention=False)
        else:
            for words in _INLINE.findall(text):
                yield from commands_in(words, is_mention=True)


def _in_source(path: Path) -> Iterator[Line]:
    for text in path.read_text().splitlines():
        if found := re.match(r"^(?:# +| *|.*`)(towpath [a-z][^`]*)(?:`|$)", text):
            yield from commands_in(found[1], is_mention="`" in text)


def commands_in(text: str, *, is_mention: bool) -> Iterator[Line]:
    """The commands in a line of a shell; `show|move` is two of them."""
    for inner in _SUBSTITUTED.findall(text):
        yield from commands_in(inner, is_mention=is_mention)
    text = _SUBSTITUTED.sub("substituted", text).replace("$PWD", "/srv")
    text = re.sub(r"(?<=[a-z])\|(?=[a-z])", "¦", text)
    lexer = shlex.shlex(text, posix=True, punctuation_chars=";&|()<>")
    lexer.whitespace_split, lexer.commenters = True, "#"
    command, before = list[str](), ""
    is_ours = False
    for word in [*lexer, ";"]:
        is_end = set(word) <= set(";&|()<>")
        if is_ours and is_end:
            yield from _alternatives(command, is_mention=is_mention)
        if is_ours and not is_end:
            command.append(word)
        else:
            named = word == "towpath" and before in ("", "--")
            is_ours, command = named or word.endswith("/bin/towpath"), []
        before = "" if is_end else word


def _alternatives(words: list[str], *, is_mention: bool) -> Iterator[Line]:
    for place, word in enumerate(words):
        if re.fullmatch("[a-z]+(¦[a-z]+)+", word):
            for one in word.split("¦"):
                yield Line((*words[:place], one, *words[place + 1 :]), is_mention)
            return
    # The parser itself would obey --install-completion and write into the profile.
    if words and not any("⇥" in word or word.endswith("-completion") for word in words):
        yield Line(tuple(words), is_mention)


# ── parsing command lines ────────────────────────────────────────────────────────────────


@cache
def _root() -> Any:
    return typer.main.get_command(app)


def refusal(line: Line) -> str | None:
    """The error of the parser, or of the value of an option."""
    context, command, rest = None, _root(), list(line.words)
    name = "towpath"
    try:
        while True:
            context = command.make_context(name, rest, parent=context, obj={"registry": dict})
            rest = [*context._protected_args, *context.args]  # noqa: SLF001 -- has no other name
            if not (rest and nouns(command)):
                break
            name, rest = rest[0], rest[1:]
            if name not in nouns(command):
                return f"there is no command {name}"
            command = nouns(command)[name]
    except typer.Exit:
        return None  # --help
    except UsageError as error:
        is_short = type(error).__name__ in _SHORTENED
        return None if line.is_mention and is_short else error.format_message()
    words = " ".join(line.words)
    given = [param for param in command.get_params(context) if param.opts[0].startswith("-")]
    for param in given:
        if context.get_parameter_source(param.name).name == "COMMANDLINE":
            try:
                read_value(words, param, context.params[param.name])
            except (TowpathError, ValueError, KeyError) as error:
                return f"{param.opts[0]}: {error!r}"
    return None


_SHORTENED = ("MissingParameter", "NoArgsIsHelpError", "BadOptionUsage")
"""Errors of the parser about what a sentence may leave out: arguments, verbs, values of options."""


def read_value(words: str, param: Any, value: Any) -> None:
    """Reads the value as the command does. Raises an error where the command would refuse it."""
    if "[setting" in (param.help or ""):
        _read_setting(param, value)
    elif param.metavar in _READ:
        _READ[param.metavar](param.name, value)
    elif param.metavar in ("STATE", "STATUS"):
        known = next(kind for noun, kind in _STATES.items() if words.startswith(noun))
        given: list[str] = [value] if isinstance(value, str) else list(value)
        for one in given:
            if one.lower() not in {state.lower() for state in known}:
                raise InvalidOption(param.name, one, rule=f"must be one of {', '.join(known)}")
    elif re.fullmatch(r"[a-z]+(\|[a-z]+)+", param.metavar or ""):
        choices = param.metavar.split("|")
        if value not in choices:
            raise InvalidOption(param.name, value, rule=f"must be one of {', '.join(choices)}")
    if param.name == "timeout" and parse_duration("timeout", value) > SERVER_ANSWERS_WITHIN:
        raise InvalidOption("timeout", value, rule="is the wait for the server only")


def _read_setting(param: Any, value: Any) -> None:
    _, said, name = (param.help or "").partition("[setting: ")
    name = name.partition("]")[0] if said else param.name
    known = {
        "log_format": {"log": {"format": value}},
        "metrics_port": {"worker": {"metrics_port": value}},
    }
    core = ("url", "timeout", "database", "data", "host", "port", "objects", "api_url", "api_key")
    flags = known.get(name) or ({name: value} if name in core else {"worker": {name: value}})
    settings = load(flags, registry=config.groups)
    if name == "url":
        _ = settings.address


_STATES = {
    "jobs": State, "queues": State, "timers": State, "reviews": ReviewState,
    "issues": IssueState, "uploads": Status,
}  # fmt: skip
_READ: dict[str, Callable[[str, Any], object]] = {
    "TIME": arguments.duration,
    "INSTANT": arguments.instant,
    "FIELDS": lambda _, text: Cron(text),
    "ZONE": lambda _, text: ZoneInfo(text),
    "POLICY": lambda _, text: read_retry(text),
    "SIZE": lambda _, text: read_size(text),
    "HIGH|0-100": lambda _, text: arguments.priority(text),
    "NAME=VALUE": arguments.pairs,
    "OPTION=VALUE": lambda name, texts: changed(QueueOptions(), arguments.pairs(name, texts)),
    "N": arguments.whole_number,
}


def known_options() -> dict[str, list[Any]]:
    """Every option of every command, with its declarations."""
    found: dict[str, list[Any]] = {}

    def add(command: Any) -> None:
        for param in command.get_params(typer.Context(command)):
            for name in (*param.opts, *param.secondary_opts):
                found.setdefault(name, []).append(param)
        for below in nouns(command).values():
            add(below)

    add(_root())
    return found


# ── the claims ───────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_command_lines_of_a_page_are_valid(path: Path) -> None:
    if path.name != OF_ANOTHER:
        wrong = {line.words: said for line in lines_of(path) if (said := refusal(line))}
        assert wrong == {}


def test_the_examples_of_every_help_text_are_valid() -> None:
    seen, wrong = 0, dict[str, str]()

    def look(command: Any) -> None:
        nonlocal seen
        examples = (command.help or "").partition("Examples:\n")[2]
        for text in examples.splitlines():
            for line in commands_in(text.strip().removeprefix("$ "), is_mention=False):
                seen += 1
                if said := refusal(line):
                    wrong[text.strip()] = said
        for below in nouns(command).values():
            look(below)

    look(_root())
    assert wrong == {}
    assert seen > 100


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_options_that_a_page_mentions_exist_and_accept_their_value(path: Path) -> None:
    known = known_options()
    for name, value in _OPTION.findall(path.read_text()):
        if name in FOREIGN or path.name == OF_ANOTHER:
            continue
        assert name in known, name
        if value:
            assert any(_takes(param, value.strip("'")) for param in known[name]), (name, value)


def _takes(param: Any, value: str) -> bool:
    try:
        read_value("", param, value)
    except (TowpathError, ValueError, KeyError, StopIteration):
        return False
    return not param.is_flag


SHOWN = [
    *sorted((ROOT / "src").rglob("*.py")),
    *sorted((ROOT / "src").rglob("*.html")),
]
_PLACEHOLDER = re.compile(r"\{\{.*?\}\}|\{%.*?%\}|\{[\w.!]+\}|<[^>]*>")


def mentions_in(text: str) -> Iterator[Line]:
    """The commands that messages, remedies, docstrings and the dashboard name."""
    for pattern, is_mention in (
        (r"`(towpath [a-z][^`\n]*)`", True),
        (r"<code>\s*(towpath [a-z].*?)</code>", True),
        (r"<pre>\s*(towpath [a-z].*?)</pre>", False),
    ):
        for words in re.findall(pattern, text):
            yield from commands_in(_PLACEHOLDER.sub("any", words), is_mention=is_mention)


def test_the_commands_that_messages_and_the_dashboard_name_are_valid() -> None:
    seen, wrong = 0, dict[tuple[str, tuple[str, ...]], str]()
    for path in SHOWN:
        for line in mentions_in(path.read_text()):
            seen += 1
            if said := refusal(line):
                wrong[path.name, line.words] = said
    assert wrong == {}
    assert seen > 50


def test_enough_command_lines_are_found() -> None:
    assert sum(1 for path in PAGES for _ in lines_of(path)) > 200


@pytest.mark.parametrize(
    "text",
    [
        "towpath gone",
        "towpath jobs vanish",
        "towpath queues --gone",
        "towpath explain",
        "towpath submit mails 1 --delay soon",
        "towpath jobs list --state sleeping",
        "towpath uploads list --status LOST",
        "towpath worker shop:app --grace long",
        "towpath worker shop:app --concurrency many",
        "towpath worker shop:app --log-format yaml",
        "towpath schedules set a b 1 --cron '0 3 * *'",
        "towpath schedules set a b 1 --cron '0 3 * * *' --tz Mars/Base",
        "towpath queues configure mails --set keep=often",
        "towpath doctor --url ftp://queue.example",
        "towpath agent --timeout 2h -- ./solve.sh",
        "seq 3 | towpath submit mails --lines --id a --priority urgent",
        "towpath keys revoke $(towpath keys list --everything)",
        "sudo /srv/shop/.venv/bin/towpath doctor --rigid",
        "towpath timers show|vanish order.timeout order-7",
    ],
)
def test_an_invalid_command_line_is_found(text: str) -> None:
    assert any(refusal(line) for line in commands_in(text, is_mention=False))


@pytest.mark.parametrize(
    "text",
    [
        'towpath submit mails \'{"to": "ann"}\' --delay 10m || test $? = 75',
        "towpath agent --limit 2h -- claude -p 'Solve it.'",
        "towpath queues    # their counts",
        "towpath worker shop:app & first=$!",
    ],
)
def test_a_valid_command_line_is_accepted(text: str) -> None:
    assert [refusal(line) for line in commands_in(text, is_mention=False)] == [None]
