"""A real cluster of private servers."""

from tests.waiting import eventually
from towpath.embedded import EmbeddedCluster, EmbeddedServer, ServerBinary


def role(node: EmbeddedServer) -> bytes:
    reply = node.ask("ROLE")
    assert isinstance(reply, list)
    assert isinstance(reply[0], bytes)
    return reply[0]


class TestACluster:
    def test_covers_all_slots_on_every_node(self, cluster: EmbeddedCluster) -> None:
        for node in cluster.nodes:
            info = node.ask("CLUSTER", "INFO")
            assert isinstance(info, bytes)
            assert b"cluster_state:ok" in info
            assert b"cluster_slots_ok:16384" in info
            assert b"cluster_size:3" in info

    def test_names_all_its_nodes_in_its_url(self, cluster: EmbeddedCluster) -> None:
        hosts = cluster.url.removeprefix("redis+cluster://").split(",")
        assert hosts == [f"127.0.0.1:{node.port}" for node in cluster.nodes]

    def test_promotes_a_replica_when_its_master_is_killed(self, binary: ServerBinary) -> None:
        with EmbeddedCluster(replicas=1, node_timeout=1.0, binary=binary) as cluster:
            assert [role(node) for node in cluster.nodes] == [b"master"] * 3 + [b"slave"] * 3
            cluster.masters[0].kill()
            eventually(lambda: role(cluster.replicas[0]) == b"master")
            cluster.wait_until_ok()

    def test_is_the_same_after_stop_and_start(self) -> None:
        with EmbeddedCluster(masters=3) as cluster:
            url, names = cluster.url, [node.ask("CLUSTER", "MYID") for node in cluster.nodes]
            cluster.stop()
            cluster.start()
            assert cluster.url == url
            assert [node.ask("CLUSTER", "MYID") for node in cluster.nodes] == names
