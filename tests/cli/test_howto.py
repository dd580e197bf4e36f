"""Every command of the page about operating from the terminal runs."""

import re
import subprocess

from tests.architecture.sources import ROOT
from tests.cli.command import Command
from tests.cli.jobs import bury
from towpath import Engine

PAGE = ROOT / "docs" / "how-to" / "operate-from-the-terminal.md"
BLOCK = re.compile(r"^```console\n(.*?)^```$", re.DOTALL | re.MULTILINE)


async def test_the_commands_of_the_page_run(towpath: Command, engine: Engine) -> None:
    await bury(engine, "mails", "mail-3")
    blocks = "".join(BLOCK.findall(PAGE.read_text()))
    commands = [line.removeprefix("$ ") for line in blocks.splitlines() if line.startswith("$ ")]
    assert len(commands) > 12
    run(towpath, commands)
    assert (await engine.inspect.counts("mails")).dead == 0


def run(towpath: Command, commands: list[str]) -> None:
    """Runs them in one shell, up to the first that fails."""
    ran = subprocess.run(
        ["bash", "-euo", "pipefail"],
        input="\n".join(commands),
        env=towpath.env,
        cwd=towpath.directory,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
