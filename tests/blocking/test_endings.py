"""Scripts without an event loop end without printing warnings or errors."""

import subprocess
import sys

import pytest

from tests.blocking.test_forks import ROOT
from tests.waiting import HANGS
from towpath.embedded import EmbeddedServer


def test_a_script_that_submitted_a_recorded_job_ends_without_output(
    server: EmbeddedServer, prepared_file_url: str
) -> None:
    """The relay of the script polls the database each second, even while the interpreter ends."""
    assert run("recorded_submit_program", server.url, prepared_file_url) == (0, "", "")


def test_a_script_that_submitted_a_job_ends_without_output(server: EmbeddedServer) -> None:
    """There is no warning about an unclosed socket either."""
    assert run("submitting_program", server.url) == (0, "ready\n", "")


def test_a_script_ends_without_output_while_a_thread_waits_for_redis() -> None:
    with EmbeddedServer() as server:
        assert run("submitting_program", server.url, str(server.pid)) == (0, "ready\n", "")
        server.unpause()


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("daemon", "ends\n"),
        ("late", "ends\n"),
        ("joined", "ends\nstill_open\n"),
        ("exit_handler", "ends\nengine_closed\n"),
    ],
)
def test_a_script_ends_without_output_while_a_thread_waits_for_a_result(
    server: EmbeddedServer, what: str, words: str
) -> None:
    assert run("waiting_program", server.url, what) == (0, words, "")


def test_a_script_ends_without_output_while_a_thread_waits_for_a_result_of_a_frozen_redis() -> None:
    with EmbeddedServer() as server:
        assert run("waiting_program", server.url, "frozen", str(server.pid)) == (0, "ends\n", "")
        server.unpause()


def run(program: str, *words: str) -> tuple[int, str, str]:
    """The exit code of a program, and its output."""
    done = subprocess.run(
        [sys.executable, "-W", "default", "-m", f"tests.blocking.{program}", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=HANGS,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr
