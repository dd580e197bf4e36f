"""The store as the engine sees it: scripts by name, and queues that are introduced at first use."""

from __future__ import annotations

from typing import Any

import msgspec

from towpath.clock import Clock
from towpath.engine.channel import Channels, Limits, QueueUnknown
from towpath.engine.connect import Link
from towpath.engine.durability import Durability, ServerFacts
from towpath.engine.keys import REGISTRY
from towpath.engine.model import Call
from towpath.engine.options import QueueOptions, differences, unpacked
from towpath.engine.script import Scripts
from towpath.engine.wire import pack
from towpath.errors import QueueDiffers
from towpath.ids import QueueName


class Store:
    """One deployment of Redis or Valkey, asked by script."""

    def __init__(self, link: Link, *, clock: Clock, limits: Limits, scripts: Scripts) -> None:
        self._scripts = scripts
        self._channels = Channels(link, clock, limits)
        self._options: dict[QueueName, QueueOptions] = {}

    async def probe(self, declared: Durability | None) -> ServerFacts:
        """What the servers say about themselves. Raises EvictionUnsafe, DurabilityUnknown."""
        return await self._channels.probe(declared)

    # ── scripts ──────────────────────────────────────────────────────────────────────────

    async def write(self, verb: str, queue: QueueName, body: Any, call: Call | None = None) -> Any:
        """The answer of a writing script; a queue that is new to the server is introduced."""
        script, packed = self._scripts[verb], pack(body)
        if queue not in self._options:
            await self.options(queue)
        try:
            return await self._channels.call(script, queue, packed, call)
        except QueueUnknown:
            # The server lost everything, or is another one: nothing was done, so ask again.
            await self._introduce(queue, self._options[queue])
            return await self._channels.call(script, queue, packed, call)

    async def read(self, verb: str, queue: QueueName, *args: Any) -> Any:
        """The answer of a script that only reads."""
        return await self._channels.clocked(self._scripts[verb], queue, *args)

    async def command(self, *command: Any) -> Any:
        """The answer of a plain command that is safe to repeat."""
        return await self._channels.command(*command)

    async def confirm(self, key: str, replicas: int) -> int:
        """How many replicas have all that was written to *key*'s server."""
        return await self._channels.confirm(key, replicas)

    # ── queues ───────────────────────────────────────────────────────────────────────────

    async def options(self, queue: QueueName) -> QueueOptions:
        """The options of *queue*: those it has, or the defaults if this is its first use."""
        known = self._options.get(queue)
        return known or await self.configure(queue, None)

    async def configure(self, queue: QueueName, wanted: QueueOptions | None) -> QueueOptions:
        """Use *queue* with these options (None = whatever it has). Raises QueueDiffers."""
        stored = await self._introduce(queue, wanted or QueueOptions())
        if wanted is not None and (found := differences(stored, wanted)):
            raise QueueDiffers(queue, found)
        self._options[queue] = stored
        return stored

    async def reconfigure(self, queue: QueueName, options: QueueOptions) -> None:
        """Give *queue* other options, for everybody and at once."""
        await self._write_options(queue, options, "replace")
        self._options[queue] = options

    async def _introduce(self, queue: QueueName, options: QueueOptions) -> QueueOptions:
        return await self._write_options(queue, options, "first")

    async def _write_options(
        self, queue: QueueName, options: QueueOptions, mode: str
    ) -> QueueOptions:
        configure = self._scripts["configure"]
        stored = unpacked(await self._channels.read(configure, queue, options.packed(), mode))
        await self._channels.command("HSET", REGISTRY, queue, msgspec.json.encode(stored))
        return stored
