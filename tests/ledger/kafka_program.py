"""A Kafka cluster of one broker for tests, in a process of its own: librdkafka's mock cluster.

    python -m tests.ledger.kafka_program

It speaks Kafka's protocol and keeps everything in memory. Its first line is its address; then it
carries out orders, one per line, and answers `done`: `down`, `up`, `refuse <error> <times>`. It
ends with its stdin. The library comes with the confluent-kafka wheel, whose Python module has no
access to the mock cluster, so ctypes is used.
"""

import ctypes
import importlib.util
import sys
from pathlib import Path

TOPIC, PARTITIONS = "events", 4
_PRODUCER, _PRODUCE = 0, 0
_BROKER = 1


def _library() -> ctypes.CDLL:
    wheel = importlib.util.find_spec("confluent_kafka")
    assert wheel is not None
    assert wheel.origin is not None
    [path] = (Path(wheel.origin).parent.parent / "confluent_kafka.libs").glob("librdkafka*")
    library = ctypes.CDLL(str(path))
    for name in ("conf_new", "new", "mock_cluster_new"):
        getattr(library, f"rd_kafka_{name}").restype = ctypes.c_void_p
    library.rd_kafka_mock_cluster_bootstraps.restype = ctypes.c_char_p
    return library


class MockKafkaCluster:
    """The mock cluster."""

    def __init__(self) -> None:
        self._library = _library()
        said = ctypes.create_string_buffer(512)
        conf = ctypes.c_void_p(self._library.rd_kafka_conf_new())
        owner = self._library.rd_kafka_new(_PRODUCER, conf, said, len(said))
        assert owner, said.value
        self._owner = ctypes.c_void_p(owner)
        self._cluster = ctypes.c_void_p(self._library.rd_kafka_mock_cluster_new(self._owner, 1))
        self._library.rd_kafka_mock_topic_create(self._cluster, TOPIC.encode(), PARTITIONS, 1)

    @property
    def address(self) -> str:
        return self._library.rd_kafka_mock_cluster_bootstraps(self._cluster).decode()

    def down(self) -> None:
        """Stops the broker: connections end and none is accepted; what was produced stays."""
        self._library.rd_kafka_mock_broker_set_down(self._cluster, _BROKER)

    def up(self) -> None:
        self._library.rd_kafka_mock_broker_set_up(self._cluster, _BROKER)

    def refuse(self, error: int, times: int) -> None:
        """Answers the next produce requests with an error of the protocol."""
        errors = (ctypes.c_int * times)(*[error] * times)
        self._library.rd_kafka_mock_push_request_errors_array(
            self._cluster, ctypes.c_int16(_PRODUCE), ctypes.c_size_t(times), errors
        )


def main() -> None:
    broker = MockKafkaCluster()
    print(broker.address, flush=True)  # noqa: T201 -- how it is told where the broker listens
    for line in sys.stdin:
        word, *numbers = line.split()
        getattr(broker, word)(*map(int, numbers))
        print("done", flush=True)  # noqa: T201 -- whoever asked waits for it


if __name__ == "__main__":
    main()
