"""A primary, its replicas and three sentinels."""

from tests.waiting import eventually
from towpath.embedded import EmbeddedSentinel, ServerBinary


class TestASetOfSentinels:
    def test_fails_over_to_a_replica_with_its_data(self, binary: ServerBinary) -> None:
        with EmbeddedSentinel(replicas=1, binary=binary) as group:
            old, replica = group.servers
            assert group.primary is old
            old.ask("SET", "key", "value")
            old.ask("WAIT", 1, 5000)
            old.kill()
            eventually(lambda: group.primary is replica)
            assert replica.ask("GET", "key") == b"value"

    def test_names_its_sentinels_and_service_in_its_url(self) -> None:
        with EmbeddedSentinel(replicas=2) as group:
            hosts = ",".join(f"127.0.0.1:{sentinel.port}" for sentinel in group.sentinels)
            assert group.url == f"redis+sentinel://{hosts}/mymaster"
            assert len(group.servers) == 3
            assert len(group.sentinels) == 3
            again = group.start()
            assert again.url == group.url
