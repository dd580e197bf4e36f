"""The installed command, run as a process: in a pipe, or in a terminal of its own."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import termios
from collections.abc import Mapping
from pathlib import Path

from tests.programs import COMMAND, Bounded, Program, ProgramResult, run

ROWS, COLUMNS = 40, 160
ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
"""How programs steer a terminal: colours, and where to write."""


class Terminal:
    """A terminal with a command in it."""

    def __init__(self, words: tuple[str, ...], env: Mapping[str, str], cwd: Path) -> None:
        self._screen, inside = pty.openpty()
        fcntl.ioctl(inside, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        self.process = Bounded[bytes](
            [COMMAND, *words],
            stdin=inside,
            stdout=inside,
            stderr=inside,
            env={**env, "TERM": "xterm-256color"},
            cwd=cwd,
            start_new_session=True,
        )
        os.close(inside)
        self.text = ""

    def read_until(self, words: str) -> None:
        """Reads until *words* are on the screen. Fails if the command ends before."""
        while words not in self.text:
            piece = self._read()
            assert piece, f"{words!r} is not in {self.text!r}"
            self.text += piece

    def type(self, keys: str) -> None:
        os.write(self._screen, keys.encode())

    def end(self) -> ProgramResult:
        """Reads to the end; returns the exit code, and the output without colours."""
        while piece := self._read():
            self.text += piece
        os.close(self._screen)
        return ProgramResult(self.process.wait(), ESCAPE.sub("", self.text).replace("\r\n", "\n"))

    def _read(self) -> str:
        try:
            return os.read(self._screen, 65_536).decode(errors="replace")
        except OSError:  # Linux raises it when the last program in the terminal has ended
            return ""


class Command:
    """`towpath` with a Redis of its own and an empty working directory."""

    def __init__(self, url: str, directory: Path) -> None:
        self.directory = directory
        self.env = {
            "PATH": f"{COMMAND.parent}:{os.environ['PATH']}",
            "HOME": str(directory),
            "TOWPATH_URL": url,
        }

    def __call__(self, *words: str, input: str | bytes = b"", **env: str) -> ProgramResult:
        given = input.encode() if isinstance(input, str) else input
        ran = run([COMMAND, *words], input=given, env=self.env | env, cwd=self.directory)
        assert "Traceback" not in ran.err
        return ran

    def in_terminal(self, *words: str, **env: str) -> Terminal:
        return Terminal(words, self.env | env, self.directory)

    def start(self, *words: str, **env: str) -> Program[str]:
        """Starts a command and leaves it running."""
        return Program(
            [COMMAND, *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self.env | env,
            cwd=self.directory,
        )
