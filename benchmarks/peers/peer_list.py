"""The peers: the head of each row, read without importing it.

A row is one file. Its head is constants with literal values; below it are the handler and the
producer, which import the peer's library. That library is only in the peer's own environment, so
the head is read from the text.
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import msgspec

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
ROWS = HERE / "rows"
TOWPATH = HERE / "towpath_row.py"
OURS = "towpath"
NODE = "bullmq"


class Peer(msgspec.Struct, frozen=True, kw_only=True):
    """The head of a row."""

    name: str
    module: str
    label: str
    settings: str
    """Its best setting, as `docs/benchmarks.md` shows it."""
    worker: str
    """The command of ONE worker process; `{url}` is the server's. No word has a blank in it."""
    environment: str = ""
    """Which environment it runs in; none: this one."""
    requires: tuple[str, ...] = ()
    """What is installed there, each with its version; the first is the peer itself."""
    producer: str = ""
    scheduler: str = ""
    """A second process that it needs for delayed jobs."""
    bulk: str = ""
    """How it submits many at once; nothing: it cannot."""
    defaults: str = ""
    """The same worker with the settings that its users get if they choose none; nothing: not run.
    `BENCH_DEFAULTS` is set then, so that the row's handler and producer leave out theirs too."""
    asyncio: bool = False
    """Its producer awaits each submit; the others block."""
    watchers: str = ""
    """A process that follows the jobs while they are measured; it prints a line when it does."""
    most: int = 1_000_000
    """Drains no more jobs than this, because it is slow."""

    @property
    def version(self) -> str:
        first = self.requires[0] if self.requires else ""
        return first.rpartition("@" if self.on_node else "==")[2]

    @property
    def ways(self) -> int:
        """Towpath submits from an event loop and from code without one; a peer has one way."""
        return 2 if self.name.startswith(OURS) else 1

    @property
    def on_node(self) -> bool:
        return self.name == NODE

    @property
    def ours(self) -> bool:
        return self.name == OURS

    @property
    def in_python(self) -> bool:
        return not self.on_node and not self.name.startswith(OURS)


def all_peers() -> list[Peer]:
    """All peers, Towpath last."""
    return [*map(read_row, sorted(ROWS.glob("*_row.py"))), ours()]


def rows_of_comparison() -> list[Peer]:
    """All peers, and Towpath once more with followers of its jobs."""
    return [*all_peers(), watched()]


def ours() -> Peer:
    return read_row(TOWPATH)


def watched() -> Peer:
    """Towpath while a program waits for a result and a page of the dashboard is open."""
    return msgspec.structs.replace(
        ours(),
        name=f"{OURS}_watched",
        label="Towpath, watched",
        settings="the same with one result() waiter and one open page of the dashboard",
        watchers="python -m benchmarks.peers.towpath_watchers",
        defaults="",
    )


def read_row(path: Path, *, root: Path = ROOT) -> Peer:
    """The head of one row. Raises msgspec.ValidationError if something is missing."""
    inside = path.relative_to(root).with_suffix("")
    module = ".".join(inside.parts)
    told: dict[str, Any] = {
        "name": path.stem.removesuffix("_row"),
        "module": module,
        "producer": f"python -m benchmarks.peers.side.produce {module}",
    }
    return msgspec.convert(told | _constants(path.read_text("utf-8")), Peer)


def _constants(text: str) -> dict[str, object]:
    """The constants of the module with literal values, their names in lower case."""
    found: dict[str, object] = {}
    for node in ast.parse(text).body:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if name in _HEAD:
                found[name.lower()] = ast.literal_eval(value)
            case _:
                pass
    return found


_HEAD = {field.upper() for field in Peer.__struct_fields__} - {"NAME", "MODULE"}
