"""The peers' own environments: made once, below a directory that git ignores.

A stamp names the contents, so a second run installs nothing. A peer that cannot be installed gets
the reason in the table, and the run goes on.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

from benchmarks.peers.peer_list import HERE, ROOT, Peer

PLACE = HERE.parent / ".peers"
_STAMP = ".installed"
_WITHIN = 600
_PIP = ("-m", "pip")
_QUIET = ("-qq", "--disable-pip-version-check")


class NotInstalled(Exception):
    """Why a peer cannot be measured, in one line."""


def prepare(peer: Peer) -> None:
    """Makes the peer's environment unless it exists already. Raises NotInstalled."""
    if peer.environment and peer.on_node:
        node_environment(peer.environment, peer.requires)
    elif peer.environment:
        python_environment(peer.environment, peer.requires)


def python_environment(name: str, requires: Sequence[str]) -> Path:
    """The Python of an environment with the required packages."""
    place = PLACE / name
    python = place / "bin" / "python"
    wanted = "\n".join([sys.version, *requires])
    if _stamp(place) == wanted:
        return python
    _remove(place)
    if _tried(sys.executable, "-m", "venv", str(place)) is None:
        _do(str(python), *_PIP, "install", *_QUIET, *requires)
    else:
        # Debian's Python has no ensurepip: then its own pip fills the environment from outside.
        _do(sys.executable, "-m", "venv", "--without-pip", "--clear", str(place))
        _do(sys.executable, *_PIP, "--python", str(python), "install", *_QUIET, *requires)
    (place / _STAMP).write_text(wanted)
    return python


def node_environment(name: str, requires: Sequence[str]) -> Path:
    """The directory whose `node_modules` has the required packages."""
    place = PLACE / name
    wanted = "\n".join(requires)
    if _stamp(place) == wanted:
        return place
    if not shutil.which("node") or not shutil.which("npm"):
        raise NotInstalled("there is no node or no npm on the PATH")
    _remove(place)
    place.mkdir(parents=True)
    (place / "package.json").write_text('{"private": true}\n')
    _do("npm", "install", "--no-audit", "--no-fund", "--loglevel=error", *requires, place=place)
    (place / _STAMP).write_text(wanted)
    return place


def command(peer: Peer, words: str, *, url: str) -> list[str]:
    """The command of a row with the full path of its program: in its environment, or unchanged."""
    program, *rest = words.format(url=url).split()
    if not peer.environment and program == "python":
        return [sys.executable, *rest]
    own = PLACE / peer.environment / "bin"
    inside = (own if peer.environment else Path(sysconfig.get_path("scripts"))) / program
    return [str(inside) if inside.exists() else program, *rest]


def variables(peer: Peer) -> dict[str, str]:
    """The variables for the processes of a row, beside the address of Redis."""
    inherited = {name: value for name, value in os.environ.items() if name not in _OURS}
    return inherited | {
        "PYTHONPATH": str(ROOT),
        "PYTHONDONTWRITEBYTECODE": "1",
        "NODE_PATH": str(PLACE / peer.environment / "node_modules"),
    }


_OURS = {"VIRTUAL_ENV", "PYTHONHOME", "PYTHONSTARTUP"}


def _stamp(place: Path) -> str:
    stamp = place / _STAMP
    return stamp.read_text() if stamp.exists() else ""


def _remove(place: Path) -> None:
    if place.exists():
        shutil.rmtree(place)


def _do(*words: str, place: Path = ROOT) -> None:
    if problem := _tried(*words, place=place):
        raise NotInstalled(problem)


def _tried(*words: str, place: Path = ROOT) -> str | None:
    """Runs a command; returns None if it succeeded, its last line if it failed."""
    try:
        ran = subprocess.run(
            words,
            cwd=place,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_WITHIN,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as problem:
        return str(problem)
    if ran.returncode == 0:
        return None
    said = [line.strip() for line in ran.stdout.splitlines() if line.strip()]
    return said[-1] if said else f"{words[0]} ended with {ran.returncode}"
