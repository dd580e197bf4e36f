"""A program that is forked from the loader behaves like one that is started."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.programs import COMMAND, Bounded, Program

CASES = {
    "an answer": ["version", "--json"],
    "a refusal": ["keys", "list", "--json"],
    "nonsense": ["nonsense"],
    "help": ["queues", "--help"],
}


def ended(
    kind: type[Bounded[bytes]] | type[Program[bytes]], words: list[str], cwd: Path
) -> tuple[object, ...]:
    env = {"PATH": "/nowhere", "TOWPATH_URL": f"unix://{cwd}/none.sock"}
    pipe = subprocess.PIPE
    with kind([COMMAND, *words], stdin=pipe, stdout=pipe, stderr=pipe, cwd=cwd, env=env) as process:
        out, err = process.communicate(b"")
    return process.returncode, out, err


@pytest.mark.parametrize("words", CASES.values(), ids=CASES)
def test_a_forked_program_prints_the_same_and_ends_the_same(
    words: list[str], tmp_path: Path
) -> None:
    assert ended(Program, words, tmp_path) == ended(Bounded, words, tmp_path)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_forked_program_is_killed_like_any_other(number: signal.Signals) -> None:
    command = [sys.executable, "-m", "http.server", "0", "--bind", "127.0.0.1"]
    with Program[bytes](command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.poll() is None
        process.send_signal(number)
        assert process.wait() == -number
        assert not Path(f"/proc/{process.pid}").exists()


def test_a_variable_that_python_reads_at_its_start_takes_effect(tmp_path: Path) -> None:
    """Such a program is executed anew instead of forked."""
    with Program[str](
        [COMMAND, "version"],
        env={"PYTHONVERBOSE": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=tmp_path,
        text=True,
    ) as process:
        _, err = process.communicate()
    assert "import 'towpath.cli.main'" in err
