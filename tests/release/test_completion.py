"""After `towpath --install-completion`, real shells complete commands, each in a new home
directory.
"""

import os
import pty
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.architecture.sources import ROOT
from tests.programs import COMMAND, Bounded
from tests.waiting import HANGS, eventually

BROUGHT = ROOT / ".venv" / "shells"
REPORT = "\x07"
"""Ctrl-G: the shell writes down the line as it stands."""
SETUP = {
    "bash": (".bashrc", """
        PS1='ready> '
        report() { printf '%s\\n' "$READLINE_LINE" > ~/line; }
        bind -x '"\\C-g": report'
    """),
    "zsh": (".zshrc", """
        PS1='ready> '
        report() { print -r -- "$BUFFER" > ~/line; }
        zle -N report
        bindkey '^G' report
    """),
}  # fmt: skip
CASES = {
    "towpath dem": "towpath demo",
    "towpath reviews sho": "towpath reviews show",
    "towpath worker --proc": "towpath worker --processes",
}


def program(shell: str) -> str:
    """The path of the shell; the test is skipped without it."""
    found = shutil.which(shell) or shutil.which(shell, path=BROUGHT)
    return found or pytest.skip(f"no {shell} here: `make .venv/shells` brings it on Debian")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """The home directory of a user who has just installed Towpath."""
    if (BROUGHT / "zshenv").exists() and shutil.which("zsh") is None:
        shutil.copy(BROUGHT / "zshenv", tmp_path / ".zshenv")
    for name, lines in SETUP.values():
        (tmp_path / name).write_text(lines)
    return tmp_path


def environment(home: Path) -> dict[str, str]:
    path = f"{COMMAND.parent}:{os.environ['PATH']}"
    return {"PATH": path, "HOME": str(home), "TERM": "xterm", "LANG": "C.UTF-8"}


def install(shell: str, home: Path) -> None:
    """Installs the completion as people do: inside the shell, which the command recognises."""
    told = subprocess.run(
        [program(shell), "-c", "towpath --install-completion; true"],
        env=environment(home), cwd=home, capture_output=True, text=True, check=True, timeout=HANGS,
    )  # fmt: skip
    assert f"{shell} completion installed" in told.stdout, told


class Terminal:
    """A shell with a terminal that the test types into."""

    def __init__(self, shell: str, home: Path) -> None:
        self._line = home / "line"
        self._screen = b""
        self._keys, screen = pty.openpty()
        os.set_blocking(self._keys, False)
        # The terminal becomes its controlling terminal, as a shell expects it.
        words = ["setsid", "--ctty", program(shell), "-i"]
        self._process = Bounded[bytes](
            words, env=environment(home), cwd=home, stdin=screen, stdout=screen, stderr=screen
        )
        os.close(screen)

    def _shows(self, text: bytes) -> bool:
        with suppress(BlockingIOError):
            self._screen += os.read(self._keys, 2**16)
        return text in self._screen

    def ready(self) -> None:
        eventually(lambda: self._shows(b"ready> "))

    def completed(self, words: str) -> str:
        """The result of pressing Tab after *words*; the line is empty again afterwards."""
        self._line.unlink(missing_ok=True)
        os.write(self._keys, f"\x15{words}\t{REPORT}".encode())
        eventually(self._reported)
        return self._line.read_text().rstrip()

    def _reported(self) -> bool:
        """Whether the line was printed completely; reads the output of the shell meanwhile."""
        self._shows(REPORT.encode())
        return self._line.exists() and self._line.read_text().endswith("\n")

    def close(self) -> None:
        os.close(self._keys)  # ends the shell
        self._process.wait()


@pytest.fixture(params=["bash", "zsh"])
def terminal(request: pytest.FixtureRequest, home: Path) -> Iterator[Terminal]:
    install(request.param, home)
    terminal = Terminal(request.param, home)
    terminal.ready()
    yield terminal
    terminal.close()


def test_bash_and_zsh_complete_nouns_verbs_and_options(terminal: Terminal) -> None:
    assert {words: terminal.completed(words) for words in CASES} == CASES


def test_fish_completes_nouns_verbs_and_options(home: Path) -> None:
    install("fish", home)
    asked = "; ".join(f"complete -C '{words}'" for words in CASES)
    told = subprocess.run(
        [program("fish"), "-c", asked],
        env=environment(home), capture_output=True, text=True, check=True, timeout=HANGS,
    )  # fmt: skip
    found = [line.partition("\t")[0] for line in told.stdout.splitlines()]
    assert found == [words.split()[-1] for words in CASES.values()]


ELSEWHERE = """
import sys
from towpath.cli.main import main
sys.modules["typer._completion_shared"] = None  # as if there were none
sys.argv = ["towpath", "--version"]
main()
"""


def test_a_typer_with_other_completion_internals_does_not_stop_the_command() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", ELSEWHERE],
        capture_output=True,
        text=True,
        check=False,
        timeout=HANGS,
    )
    assert (ran.returncode, ran.stdout.split()[:1]) == (0, ["towpath"]), ran.stderr
