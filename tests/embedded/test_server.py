"""One private server."""

import os
import signal
import socket
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import unquote

import pytest

from tests.servers import newest
from tests.waiting import eventually
from towpath.embedded import (
    CommandRefused,
    EmbeddedServer,
    Listen,
    RedisConnection,
    ServerBinary,
    ServerDidNotStart,
    ServerNotRunning,
)
from towpath.embedded import server as server_module
from towpath.embedded.home import free_port


def setting(server: EmbeddedServer, name: str) -> str:
    reply = server.ask("CONFIG", "GET", name)
    assert isinstance(reply, list)
    assert isinstance(reply[1], bytes)
    return reply[1].decode()


class TestListening:
    def test_on_a_socket_works(self, binary: ServerBinary) -> None:
        with EmbeddedServer(binary=binary) as server:
            assert server.url == f"unix://{server.socket}"
            assert setting(server, "port") == "0"

    def test_on_a_port_of_the_loopback_address_works(self, binary: ServerBinary) -> None:
        with EmbeddedServer(listen=Listen.PORT, binary=binary) as server:
            assert server.url == f"redis://127.0.0.1:{server.port}"
            assert server.ask("PING") == b"PONG"
            assert not server.socket.exists()

    def test_on_both_works(self, binary: ServerBinary) -> None:
        with EmbeddedServer(listen=Listen.BOTH, binary=binary) as server:
            with RedisConnection(server.socket) as by_socket:
                by_socket.ask("SET", "key", "value")
            with RedisConnection(("127.0.0.1", server.port)) as by_port:
                assert by_port.ask("GET", "key") == b"value"

    def test_on_the_port_that_was_asked_for_works(self) -> None:
        with EmbeddedServer(listen=Listen.PORT) as first:
            port = first.port
        with EmbeddedServer(listen=Listen.PORT, port=port) as second:
            assert second.url == f"redis://127.0.0.1:{port}"

    def test_on_a_requested_port_that_is_taken_is_refused(self) -> None:
        with EmbeddedServer(listen=Listen.PORT) as first:
            second = EmbeddedServer(listen=Listen.PORT, port=first.port)
            with pytest.raises(ServerDidNotStart, match="already in use"):
                second.start()

    def test_uses_another_port_when_another_program_took_it_first(
        self, binary: ServerBinary, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A program that answers PING on the port is not taken for the server."""
        with EmbeddedServer(listen=Listen.PORT) as stranger:
            free = iter([stranger.port, free_port()])
            monkeypatch.setattr(server_module, "free_port", lambda: next(free))
            with EmbeddedServer(listen=Listen.PORT, binary=binary) as server:
                assert server.port != stranger.port
                assert server.pid != stranger.pid

    def test_several_servers_at_once_each_on_its_own_socket(self) -> None:
        with ThreadPoolExecutor() as threads:
            servers = list(threads.map(EmbeddedServer.start, [EmbeddedServer() for _ in range(4)]))
        try:
            for number, server in enumerate(servers):
                server.ask("SET", "number", number)
            assert [server.ask("GET", "number") for server in servers] == [b"0", b"1", b"2", b"3"]
        finally:
            for server in servers:
                server.stop()


class TestThePlaceOfASocket:
    def test_is_elsewhere_if_the_path_of_the_data_directory_is_too_long(
        self, tmp_path: Path, binary: ServerBinary
    ) -> None:
        data = tmp_path / ("long" * 30)
        with EmbeddedServer(data=data, binary=binary) as server:
            assert server.directory == data
            assert not server.socket.is_relative_to(data)
            assert server.ask("PING") == b"PONG"

    def test_is_elsewhere_if_the_path_of_the_temp_directory_is_too_long(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        long = tmp_path / ("long" * 30)
        long.mkdir()
        monkeypatch.setattr(tempfile, "tempdir", str(long))
        with EmbeddedServer() as server:
            assert server.ask("PING") == b"PONG"

    def test_may_have_any_character_in_its_path(self, tmp_path: Path, binary: ServerBinary) -> None:
        data = tmp_path / "a #%'\"\\ é"
        with EmbeddedServer(data=data, binary=binary) as server:
            assert unquote(server.url) == f"unix://{data}/server.sock"
            assert server.ask("PING") == b"PONG"

    def test_may_have_a_socket_left_by_a_crash(self, tmp_path: Path, binary: ServerBinary) -> None:
        with socket.socket(socket.AF_UNIX) as abandoned:
            abandoned.bind(str(tmp_path / "server.sock"))
        with EmbeddedServer(data=tmp_path, binary=binary) as server:
            assert server.ask("PING") == b"PONG"


class TestKeepingData:
    def test_with_a_directory_everything_acknowledged_is_on_disk(
        self, tmp_path: Path, binary: ServerBinary
    ) -> None:
        with EmbeddedServer(data=tmp_path / "new", binary=binary) as server:
            assert setting(server, "appendonly") == "yes"
            assert setting(server, "appendfsync") == "always"
            assert setting(server, "maxmemory-policy") == "noeviction"

    def test_without_a_directory_nothing_is_kept(self, binary: ServerBinary) -> None:
        with EmbeddedServer(binary=binary) as server:
            assert setting(server, "appendonly") == "no"
            assert setting(server, "save") == ""
            assert setting(server, "maxmemory-policy") == "noeviction"
            server.ask("SET", "key", "value")
            server.restart()
            assert server.ask("GET", "key") is None

    def test_survives_a_kill(self, tmp_path: Path, binary: ServerBinary) -> None:
        with EmbeddedServer(data=tmp_path, binary=binary) as server:
            server.ask("SET", "key", "value")
            server.kill()
            server.start()
            assert server.ask("GET", "key") == b"value"

    def test_in_a_directory_lets_the_next_server_read_it(self, tmp_path: Path) -> None:
        with EmbeddedServer(data=tmp_path) as first:
            first.ask("SET", "key", "value")
        with EmbeddedServer(data=tmp_path) as second:
            assert second.ask("GET", "key") == b"value"

    def test_gives_options_of_the_caller_precedence(
        self, tmp_path: Path, binary: ServerBinary
    ) -> None:
        options = {"maxmemory": "50mb", "appendfsync": "everysec", "save": "900 1"}
        with EmbeddedServer(data=tmp_path, options=options, binary=binary) as server:
            assert setting(server, "maxmemory") == str(50 * 1024 * 1024)
            assert setting(server, "appendfsync") == "everysec"
            assert setting(server, "save") == "900 1"


class TestStartingAndStopping:
    def test_twice_does_no_harm(self) -> None:
        server = EmbeddedServer().start()
        pid = server.pid
        assert server.start().pid == pid
        server.stop()
        server.stop()
        assert not server.running

    async def test_in_an_event_loop_works(self) -> None:
        async with EmbeddedServer() as server:
            assert server.ask("PING") == b"PONG"
        assert not server.running

    @pytest.mark.parametrize("listen", Listen)
    def test_again_keeps_the_address(self, listen: Listen) -> None:
        with EmbeddedServer(listen=listen) as server:
            url, pid = server.url, server.pid
            server.restart()
            assert server.url == url
            assert server.pid != pid
            assert server.ask("PING") == b"PONG"

    def test_is_refused_with_the_servers_own_words(self, binary: ServerBinary) -> None:
        with pytest.raises(ServerDidNotStart) as refusal:
            EmbeddedServer(options={"no-such-option": "yes"}, binary=binary).start()
        assert "no-such-option" in refusal.value.tail

    def test_is_refused_if_the_program_cannot_run(self, tmp_path: Path) -> None:
        found = newest()
        gone = ServerBinary(tmp_path / "gone", found.flavour, found.version)
        with pytest.raises(ServerDidNotStart):
            EmbeddedServer(binary=gone).start()

    def test_can_be_repaired_after_a_refusal(self, tmp_path: Path) -> None:
        """A failed start frees the data directory."""
        with pytest.raises(ServerDidNotStart):
            EmbeddedServer(data=tmp_path, options={"no-such-option": "yes"}).start()
        with EmbeddedServer(data=tmp_path) as server:
            assert server.ask("PING") == b"PONG"

    def test_ends_a_server_that_does_not_react(self) -> None:
        """A script that runs for ever and writes cannot be interrupted, so the server is killed."""
        with EmbeddedServer() as server, RedisConnection(server.address, within=0.05) as busy:
            with pytest.raises(TimeoutError):
                busy.ask("EVAL", "redis.call('SET', 'n', 1) while true do end", 0)
            server.stop(within=0.3)
            assert not server.running

    def test_succeeds_with_a_password(self) -> None:
        with EmbeddedServer(options={"requirepass": "secret"}) as server:
            assert server.running
            with pytest.raises(CommandRefused, match="NOAUTH"):
                server.ask("GET", "key")


class TestAServerThatEndedOrHangs:
    def test_is_reported_as_not_running(self) -> None:
        with EmbeddedServer() as server:
            os.kill(server.pid, signal.SIGKILL)
            eventually(lambda: not server.running)
            with pytest.raises(ServerNotRunning):
                server.pause()

    def test_answers_nothing_while_paused_and_everything_after(self) -> None:
        with EmbeddedServer() as server, RedisConnection(server.address, within=0.05) as waiting:
            server.pause()
            with pytest.raises(TimeoutError):
                waiting.ask("PING")
            server.unpause()
            assert server.ask("PING") == b"PONG"

    def test_can_be_stopped_while_paused(self) -> None:
        with EmbeddedServer() as server:
            server.pause()
            server.stop()
            assert not server.running

    def test_can_be_killed_while_paused(self) -> None:
        with EmbeddedServer() as server:
            server.pause()
            server.kill()
            assert not server.running
