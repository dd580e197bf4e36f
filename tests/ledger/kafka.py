"""Kafka for tests: a broker that can be stopped and started, and a reader of its messages."""

import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from aiokafka import AIOKafkaConsumer  # pyright: ignore[reportMissingTypeStubs] -- it has none

from tests.ledger.kafka_program import TOPIC
from tests.programs import Bounded
from tests.waiting import HANGS

ROOT = Path(__file__).parents[2]


class KafkaMessage(NamedTuple):
    partition: int
    key: bytes
    value: bytes
    headers: dict[str, bytes]


class KafkaBroker:
    """`tests.ledger.kafka_program` as a process; it ends with the block, or with this one."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self.address = ""

    def __enter__(self) -> Self:
        pipe = subprocess.PIPE
        command = [sys.executable, "-m", "tests.ledger.kafka_program"]
        self._process = Bounded[str](
            command, cwd=ROOT, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True
        )
        self.address = self._heard()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        assert self._process is not None
        self._process.communicate(timeout=HANGS)

    def down(self) -> None:
        """Stops the broker: connections end and none is accepted; what was produced stays."""
        self._tell("down")

    def up(self) -> None:
        self._tell("up")

    def refuse(self, error: int, times: int = 1) -> None:
        """Answers the next produce requests with this error of the protocol."""
        self._tell("refuse", str(error), str(times))

    def _tell(self, *words: str) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(" ".join(words) + "\n")
        self._process.stdin.flush()
        assert self._heard() == "done"

    def _heard(self) -> str:
        assert self._process is not None
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    async def messages(self) -> list[KafkaMessage]:
        """All messages of the topic, each partition in order. Another library reads them."""
        consumer: Any = AIOKafkaConsumer(
            TOPIC, bootstrap_servers=self.address, auto_offset_reset="earliest"
        )
        await consumer.start()
        try:
            ends = await consumer.end_offsets(consumer.assignment())
            found = [await consumer.getone() for _ in range(sum(ends.values()))]
        finally:
            await consumer.stop()
        return [
            KafkaMessage(record.partition, record.key, record.value, dict(record.headers))
            for record in found
        ]
