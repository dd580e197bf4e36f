"""The versions of everything with which the figures were measured."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version
from pathlib import Path

import msgspec

from towpath import Engine
from towpath.embedded import EmbeddedServer
from towpath.embedded.process import fields

CPU_INFO = Path("/proc/cpuinfo")


class Versions(msgspec.Struct, frozen=True):
    towpath: str
    python: str
    server: str
    allocator: str
    redis_py: str
    hiredis: str
    system: str
    cpu: str
    cpus: int
    load: float
    """What others made the machine do in the minute before: above 0.5 a CPU, it shows."""

    def __str__(self) -> str:
        return (
            f"Towpath {self.towpath}, Python {self.python}, {self.server} ({self.allocator}) on a "
            f"Unix socket, "
            f"redis-py {self.redis_py}, hiredis {self.hiredis}, {self.system}, "
            f"{self.cpus} CPUs ({self.cpu}), load {self.load:.1f} at the start"
        )

    @property
    def busy(self) -> bool:
        return self.load > 0.5 * self.cpus


async def versions() -> Versions:
    async with EmbeddedServer() as server, Engine(server.url) as engine:
        facts = engine.facts
        allocator = fields(server.ask("INFO", "memory"))["mem_allocator"]
    return Versions(
        towpath=version("towpath"),
        python=platform.python_version(),
        server=f"{facts.flavour.capitalize()} {facts.version}",
        allocator=allocator,
        redis_py=version("redis"),
        hiredis=version("hiredis"),
        system=f"{platform.system()} {platform.machine()}",
        cpu=_cpu(),
        cpus=os.cpu_count() or 1,
        load=os.getloadavg()[0],
    )


def _cpu() -> str:
    if CPU_INFO.exists():
        for line in CPU_INFO.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or "unknown"
