"""The data of a Redis as plain commands, one line of JSON each, which any version of Redis can
load.

Bytes are written as the characters of Latin-1. A key with a time to live keeps the time that was
left.
"""

import json
from collections.abc import Iterator
from pathlib import Path

from tests.spec.deployment import Deployment
from towpath.embedded import EmbeddedServer, Reply
from towpath.embedded.process import items

_READ: dict[Reply, tuple[str, ...]] = {
    b"string": ("GET",),
    b"list": ("LRANGE", "0", "-1"),
    b"zset": ("ZRANGE", "0", "-1", "WITHSCORES"),
    b"stream": ("XRANGE", "-", "+"),
    b"hash": ("HGETALL",),
}


def dump(server: EmbeddedServer, file: Path) -> None:
    """Writes the commands that make every key of *server*."""
    keys = sorted(as_bytes(key) for key in items(server.ask("KEYS", "*")))
    lines = [line for key in keys for line in _commands(server, key)]
    told = [json.dumps([word.decode("latin-1") for word in line]) for line in lines]
    file.write_text("\n".join(told) + "\n")


def load(deployment: Deployment, file: Path) -> None:
    """Makes every key of *file* on *deployment*, which is emptied first."""
    deployment.flush()
    for line in file.read_text().splitlines():
        command, key, *words = (word.encode("latin-1") for word in json.loads(line))
        deployment.ask(command, key, *words)


def _commands(server: EmbeddedServer, key: bytes) -> Iterator[list[bytes]]:
    kind = server.ask("TYPE", key)
    command, *words = _READ[kind]
    value = server.ask(command, key, *words)
    flat = [as_bytes(item) for item in items(value)] if kind not in (b"string", b"stream") else []
    match kind:
        case b"string":
            yield [b"SET", key, as_bytes(value)]
        case b"list":
            yield [b"RPUSH", key, *flat]
        case b"hash":
            pairs = sorted(zip(flat[::2], flat[1::2], strict=True))
            yield [b"HSET", key, *(word for pair in pairs for word in pair)]
        case b"zset":
            pairs = list(zip(flat[1::2], flat[::2], strict=True))
            yield [b"ZADD", key, *(word for pair in pairs for word in pair)]
        case _:
            for entry in items(value):
                id, fields = items(entry)
                yield [b"XADD", key, as_bytes(id), *map(as_bytes, items(fields))]
    left = server.ask("PTTL", key)
    if isinstance(left, int) and left >= 0:
        yield [b"PEXPIRE", key, str(left).encode()]


def as_bytes(reply: Reply) -> bytes:
    assert isinstance(reply, bytes)
    return reply
