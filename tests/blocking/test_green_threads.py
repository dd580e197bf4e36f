"""Blocking calls in programs that gevent and eventlet have patched, with the real libraries."""

import subprocess
import sys

import pytest

from tests.blocking.test_forks import ROOT
from tests.waiting import HANGS
from towpath.embedded import EmbeddedServer

pytestmark = pytest.mark.parametrize("library", ["gevent", "eventlet"])


def run(library: str, what: str) -> list[str]:
    """The output of a patched program."""
    with EmbeddedServer() as server:
        # eventlet warns that it is deprecated.
        program = ["-W", "ignore", "-m", "tests.blocking.green_threads_program", library, what]
        done = subprocess.run(
            [sys.executable, *program, server.url, str(server.pid)],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=HANGS,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout.splitlines()


def test_many_green_threads_submit_and_wait_at_once(library: str) -> None:
    assert run(library, "share") == ["found 60 of 60 connections True"]


def test_a_timeout_in_the_middle_of_a_reply_leaves_it_to_no_later_call(library: str) -> None:
    assert run(library, "timeout") == ["over True", "first False"] * 3


def test_a_timeout_ends_one_wait_for_a_result_and_no_other(library: str) -> None:
    assert run(library, "result") == ["over", "b ready"]


def test_handlers_with_a_record_are_refused_by_name(library: str) -> None:
    assert run(library, "refused") == [f"threads_patched {library}"] * 2 + ["ready"]


def test_patching_after_the_import_of_towpath_is_refused(library: str) -> None:
    assert run(library, "late") == [f"{library} has replaced threads after Towpath was imported"]
