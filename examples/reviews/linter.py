"""A reviewer for local clones: it runs a linter on the files that a task changed.

    python linter.py --clones DIR --suffix .py -- ruff check -q \\
        --output-format=concise

It is a command reviewer: it reads the task as JSON from standard input and prints the review.
The clone is DIR/owner/name. This program does not fetch; another program must update the clone.
The linter gets the changed files as its last arguments, or in place of an argument {files}. It must
print `path:line:column: text`, as ruff (concise), flake8, pylint (parseable), mypy and eslint
(unix) do. ruff, flake8 and mypy run without the commit's configuration. Any other linter may run
code of the commit, and is refused without --trust-commits.

    exit code 0     the review is printed
    exit code 64    the command is wrong, or the linter may run code of the commit
    exit code 65    the task is invalid
    exit code 70    the linter or git failed
    exit code 75    the clone does not have the commit yet
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from types import FrameType
from typing import IO, NamedTuple, cast

import msgspec

from clones import Clone, GitFailed, Unready
from isolation import NotIsolated, isolated
from towpath.apps.reviews.errors import TaskInvalid
from towpath.apps.reviews.model import Comment, Review, ReviewTask, Severity, Verdict
from towpath.forges.texts import is_path, one_line

_FILES = "{files}"
_AT_ONCE = 200
"""Files per run of the linter: the length of a command line is limited."""
_LARGEST_TASK = 1 << 20
_LONGEST_LINE = 16_384
_LONGEST_BODY = 1000
_MOST_COMMENTS = 500
_LARGEST_COMMENTS = 900_000
"""In bytes. A review has at most a mebibyte."""

_FINDING = re.compile(r"(?P<path>.+?):(?P<line>[0-9]{1,7})(?::[0-9]{1,7})?:? +(?P<said>\S.*)")
_GRAVE = re.compile(
    r"(?i:\[?(?:error|fatal|invalid-syntax|syntaxerror)\b)|\[?[EF][0-9]{4}|E9|F8|.*\[Error/"
)
_FIXABLE = "[*] "
# A linter in Python must not import modules from the directory that it checks.
_ENVIRONMENT = {"NO_COLOR": "1", "PYTHONSAFEPATH": "1"}


class LinterFailed(Exception):
    """The linter did not check the files."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Review the task on standard input; returns the exit code. SIGTERM ends it cleanly."""
    options = _parsed(arguments)
    try:
        command = options.command if options.trust_commits else isolated(options.command)
    except NotIsolated as error:
        return _failed(error, os.EX_USAGE)
    signal.signal(signal.SIGTERM, _end)
    try:
        task = ReviewTask.unpacked(sys.stdin.buffer.read(_LARGEST_TASK))
        review = reviewed(task, options.clones, command, suffixes=options.suffix)
    except TaskInvalid as error:
        return _failed(error, os.EX_DATAERR)
    except Unready as error:
        return _failed(error, os.EX_TEMPFAIL)
    except (GitFailed, LinterFailed) as error:
        return _failed(error, os.EX_SOFTWARE)
    sys.stdout.buffer.write(review.packed() + b"\n")
    return os.EX_OK


def reviewed(
    task: ReviewTask, clones: Path, command: Sequence[str], *, suffixes: Sequence[str] = ()
) -> Review:
    """Run the linter *command* on the files that *task* changed and that have one of *suffixes*.

    Requests changes if there are findings. Does not approve if some files could not be checked,
    because they are too large or have dangerous names. Raises Unready, GitFailed, LinterFailed.
    """
    clone = Clone.below(clones, task.repository)
    files = [path for path in clone.changed(task) if not suffixes or path.endswith(tuple(suffixes))]
    name = Path(command[0]).name
    if not files:
        return Review(summary=f"{name}: no changed files to check.", verdict=Verdict.APPROVE)
    with clone.checked_out(task.head) as tree:
        seen = [path for path in files if is_path(path) and (tree / path).is_file()]
        return _review(name, seen, _linted(command, seen, tree), unseen=len(files) - len(seen))


class Finding(NamedTuple):
    """A line of the linter that names a place in a file."""

    path: str
    line: int
    said: str

    def comment(self) -> Comment:
        grave = _GRAVE.match(self.said)
        return Comment(
            path=self.path,
            line=max(self.line, 1),
            body=self.said,
            severity=Severity.ERROR if grave else Severity.WARNING,
        )


def finding(line: str, tree: Path) -> Finding | None:
    """The finding in a line, for a file below *tree*; None if the line has none."""
    match = _FINDING.fullmatch(line)
    if match is None:
        return None
    said = one_line(match["said"].replace(_FIXABLE, "", 1), most=_LONGEST_BODY)
    path = match["path"].removeprefix(f"{tree}/").removeprefix("./")
    return Finding(path, int(match["line"]), said) if said else None


def _linted(command: Sequence[str], files: Sequence[str], tree: Path) -> Iterator[Finding]:
    rest = iter(files)
    while some := list(islice(rest, _AT_ONCE)):
        yield from _run(_with_files(command, some), tree)


def _run(command: Sequence[str], tree: Path) -> Iterator[Finding]:
    """The findings of one run. Raises LinterFailed if the linter fails without a finding."""
    seen = 0
    try:
        linter = subprocess.Popen(
            command,
            cwd=tree,
            env={**os.environ, **_ENVIRONMENT},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
        )
    except OSError as error:
        raise LinterFailed(f"{command[0]} can't be started: {error.strerror}") from error
    said = cast("IO[bytes]", linter.stdout)
    with linter:
        try:
            for line in iter(lambda: said.readline(_LONGEST_LINE), b""):
                found = finding(line.decode(errors="replace").rstrip("\r\n"), tree)
                if found is not None:
                    seen += 1
                    yield found
        except BaseException:
            linter.kill()
            raise
    # Exit codes differ between linters. A linter that fails and names no line has not checked.
    if linter.returncode and not seen:
        raise LinterFailed(f"{command[0]} ended with {linter.returncode} and found nothing")


def _with_files(command: Sequence[str], files: Sequence[str]) -> list[str]:
    # A name that begins with a hyphen would be an option; one with @ would be a file of arguments.
    named = [path if path[0].isalnum() or path[0] in "._" else f"./{path}" for path in files]
    if _FILES not in command:
        return [*command, *named]
    place = list(command).index(_FILES)
    return [*command[:place], *named, *command[place + 1 :]]


def _review(name: str, files: Sequence[str], findings: Iterable[Finding], *, unseen: int) -> Review:
    """Count all findings, and keep as many as a review may have."""
    changed, touched, count, size = frozenset(files), set[str](), 0, 0
    kept: list[Comment] = []
    for found in findings:
        if found.path not in changed:
            continue
        count += 1
        touched.add(found.path)
        if count == len(kept) + 1 <= _MOST_COMMENTS:  # no finding was left out yet
            comment = found.comment()
            size += len(msgspec.json.encode(comment)) + 1
            kept += [comment] if size <= _LARGEST_COMMENTS else []
    rest = f" Not checked because of name or size: {_counted(unseen, 'file')}." if unseen else ""
    if not count:
        summary = f"{name}: no findings in {_counted(len(files), 'changed file')}.{rest}"
        verdict = Verdict.COMMENT if unseen else Verdict.APPROVE
        return Review(summary=summary, verdict=verdict)
    where = f"in {len(touched)} of {_counted(len(files), 'changed file')}"
    more = "" if count == len(kept) else f"; the first {len(kept)} follow"
    return Review(
        summary=f"{name}: {_counted(count, 'finding')} {where}{more}.{rest}",
        verdict=Verdict.REQUEST_CHANGES,
        comments=tuple(kept),
    )


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python linter.py",
        description="Reviews the task on standard input with a linter, in a local clone.",
    )
    parser.add_argument("--clones", type=Path, required=True, help="where owner/name are cloned")
    parser.add_argument(
        "--suffix", action="append", default=[], help="only files that end so; may be repeated"
    )
    parser.add_argument(
        "--trust-commits",
        action="store_true",
        help="let the linter take configuration from the commit, and so run code of it",
    )
    parser.add_argument("command", nargs="+", help="the linter and its arguments, behind --")
    return parser.parse_args(arguments)


def _failed(error: Exception, code: int) -> int:
    sys.stderr.write(f"{error}\n")
    return code


def _end(number: int, _: FrameType | None) -> None:
    signal.signal(number, signal.SIG_IGN)  # the first signal is enough; now clean up
    raise SystemExit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
