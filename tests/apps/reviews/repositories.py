"""Real git repositories for tests."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

_WHO = {
    f"GIT_{role}_{what}": value
    for role in ("AUTHOR", "COMMITTER")
    for what, value in (("NAME", "Ann"), ("EMAIL", "ann@example.com"))
}


class Repository:
    """A repository with a working tree at *place*."""

    def __init__(self, place: Path) -> None:
        self.place = place
        place.mkdir(parents=True)
        self.git("init", "-q", "-b", "main")

    def git(self, *arguments: str) -> str:
        """The output of git."""
        env = {
            **os.environ,
            **_WHO,
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_CONFIG_SYSTEM": os.devnull,
        }
        ran = subprocess.run(
            ["git", "-C", str(self.place), *arguments],
            env=env,
            check=True,
            capture_output=True,
            text=True,
        )
        return ran.stdout.strip()

    def commit(self, files: Mapping[str, str | None], message: str = "Change") -> str:
        """Writes *files* (None = delete) and commits them; returns the id of the commit."""
        for name, content in files.items():
            path = self.place / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if content is None:
                path.unlink()
            else:
                path.write_text(content)
        return self.commit_all(message)

    def commit_all(self, message: str = "Change") -> str:
        self.git("add", "-A")
        self.git("commit", "-q", "--allow-empty", "-m", message)
        return self.git("rev-parse", "HEAD")
