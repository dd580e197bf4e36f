"""Runs the programs of `examples/messages` and `examples/issues` with a server."""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.programs import COMMAND, Program, ProgramResult, run
from tests.server.serving import RunningServer, up

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with up(tmp_path_factory.mktemp("served")) as running:
        yield running


def ran(served: RunningServer, program: str, *words: str) -> ProgramResult:
    env = {
        "PATH": os.environ["PATH"],
        "ADDRESS": served.address,
        "TOWPATH_API_KEY": served.key,
    }
    return run([sys.executable, str(EXAMPLES / program), *words], env=env, cwd=EXAMPLES)


def test_a_chat_gets_its_answers(served: RunningServer) -> None:
    words = ["worker", "consumer:app", "--url", served.said["store"]]
    env = {"PATH": os.environ["PATH"], "HOME": str(served.log.parent)}
    with Program[bytes]([COMMAND, *words], cwd=EXAMPLES / "messages", env=env) as consumer:
        for text in ("hello", "are you there?"):
            told = ran(served, "messages/chat.py", "ann", text)
            assert (told.code, told.out) == (0, f"ann said: {text}\n"), told.err
        consumer.send_signal(signal.SIGTERM)
        assert consumer.wait() == 0


def test_an_agent_works_on_all_issues_and_ends(served: RunningServer) -> None:
    client = served.client()
    for number in (1, 2):
        issue = {"repository": "octo/repo", "number": number, "title": "It breaks"}
        assert client.post("/api/v1/issues", json=issue).status_code == 200
    told = ran(served, "issues/agent.py", "agent-7")
    assert told.code == 0, told.err
    assert told.out.splitlines() == ["looked at octo/repo#1", "looked at octo/repo#2"]
    assert ran(served, "issues/agent.py", "agent-8").out == ""
