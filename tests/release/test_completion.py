"""The shell completes commands, as it does after `towpath --install-completion`."""

import os
import subprocess

import pytest

from tests.warm import COMMAND

ASKED = """
eval "$(_TOWPATH_COMPLETE=source_bash towpath)"
COMP_WORDS=({words}); COMP_CWORD=$(( ${{#COMP_WORDS[@]}} - 1 ))
_towpath_completion towpath
printf '%s\\n' "${{COMPREPLY[@]}}"
complete -p towpath
"""


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        ("towpath rev", {"reviews"}),
        ("towpath dem", {"demo"}),
        ("towpath reviews s", {"submit", "show"}),
        ("towpath worker --proc", {"--processes"}),
    ],
)
def test_bash_completes_nouns_verbs_and_options(words: str, completed: set[str]) -> None:
    ran = subprocess.run(
        ["bash", "--norc", "-c", ASKED.format(words=words)],
        env={**os.environ, "PATH": f"{COMMAND.parent}:{os.environ['PATH']}"},
        check=True,
        capture_output=True,
        text=True,
        timeout=100,
    )
    *found, registered = ran.stdout.splitlines()
    assert set(found) == completed
    assert registered == "complete -o default -F _towpath_completion towpath"


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_are_told_how(shell: str) -> None:
    ran = subprocess.run(
        [COMMAND],
        env={**os.environ, "_TOWPATH_COMPLETE": f"source_{shell}"},
        check=True,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert f"_TOWPATH_COMPLETE=complete_{shell}" in ran.stdout
