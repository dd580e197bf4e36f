"""Scripts that report the commands they run, and that fail at a chosen command.

Every `redis.call` and `redis.pcall` in the text of the scripts goes through a Lua function. It
writes the command to a list outside of the queue, and raises an error *instead of* the chosen one.
"""

import re
from dataclasses import dataclass

from towpath.embedded import EmbeddedServer
from towpath.embedded.process import items
from towpath.engine.codec import unpack_raw
from towpath.engine.script import ARGS, Scripts

PLANTED = "PLANTED"
READING = frozenset(
    {
        "job_facts",
        "ended",
        "list",
        "lane",
        "lanes_without_backlog",
        "counts",
        "groups",
        "history",
        "schedules",
        "scheduled",
        "search",
    }
)
ONE_WRITE = frozenset({"wake", "delete_queue"})
"""Those that write one key or all in one command, and touch nobody's job."""
WRITING = sorted(ARGS.keys() - READING - ONE_WRITE)

_PROBE = f"""
local probe_at = tonumber(redis.call('GET', 'probe:at') or '0')
local probe_count = 0
local function probe_fails(tolerated, ...)
  probe_count = probe_count + 1
  redis.call('RPUSH', 'probe:trace', cmsgpack.pack({{tolerated, ...}}))
  return probe_count == probe_at
end
local function probe_call(...)
  if probe_fails(false, ...) then error('{PLANTED} at call ' .. probe_count) end
  return redis.call(...)
end
local function probe_pcall(...)
  if probe_fails(true, ...) then return {{ err = '{PLANTED}' }} end
  return redis.pcall(...)
end
"""
_CALL = re.compile(r"\bredis\.(p?call)\b")


@dataclass(frozen=True, slots=True)
class ScriptCommand:
    """A command that a script ran, or was about to run."""

    name: str
    words: tuple[bytes, ...]
    writes: bool
    tolerated: bool
    """Whether the script goes on if it fails (`pcall`)."""

    def keys(self, tag: bytes) -> list[bytes]:
        return [word for word in self.words if word.startswith(tag)]


def probed(opening: str = "") -> Scripts:
    """The shipped scripts with every command reported; *opening* is Lua that runs first."""

    def edit(piece: str, text: str) -> str:
        observed = _CALL.sub(r"probe_\1", text)
        return observed if piece else _PROBE + opening

    return Scripts(edit)


class ScriptProbe:
    """Chooses where `probed` scripts fail, and reads which commands they ran."""

    def __init__(self, server: EmbeddedServer) -> None:
        self._server = server
        self._writes: dict[str, bool] = {}

    def fail_at(self, number: int) -> None:
        """Makes the *number*-th command of the next scripts fail; 0 = none."""
        self._server.ask("SET", "probe:at", number)
        self._server.ask("DEL", "probe:trace")

    def trace(self) -> list[ScriptCommand]:
        """The commands of scripts since `fail_at`, including the failed one."""
        rows = items(self._server.ask("LRANGE", "probe:trace", 0, -1))
        return [self._command(row) for row in rows if isinstance(row, bytes)]

    def _command(self, row: bytes) -> ScriptCommand:
        tolerated, name, *words = unpack_raw(row)
        text = name.decode().upper()
        if text not in self._writes:
            self._writes[text] = self._asks_to_write(text)
        texts = tuple(word for word in words if isinstance(word, bytes))
        return ScriptCommand(text, texts, self._writes[text], tolerated)

    def _asks_to_write(self, name: str) -> bool:
        [info] = items(self._server.ask("COMMAND", "INFO", name))
        return b"write" in items(items(info)[2])
