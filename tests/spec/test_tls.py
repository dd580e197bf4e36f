"""TLS to a real Redis: a private certificate authority, client certificates, every topology."""

import asyncio
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
import redis.asyncio as redis
import trustme

from tests.entering import refusal_on_entering
from tests.servers import encrypting
from tests.spec.deployment import USER, as_documented_user, denied_on, documented_user
from tests.waiting import HANGS, eventually
from towpath.clock import minutes, seconds
from towpath.embedded import EmbeddedServer, Listen
from towpath.embedded.groups import SERVICE
from towpath.embedded.home import LOOPBACK, free_port
from towpath.embedded.process import fields
from towpath.engine.channel import Limits
from towpath.engine.engine import Engine
from towpath.engine.tls import Tls, Verify
from towpath.engine.url import parse_url
from towpath.errors import InvalidOption, ServerRefused, TlsFailed
from towpath.settings import load

BINARY = encrypting()
needs_tls = pytest.mark.skipif(
    BINARY is None, reason="no server that speaks TLS; on Debian: make .venv/redis-tls"
)
PATIENT = Limits(answer=minutes(10), give_up=minutes(20))
"""Whoever takes a refused certificate for passing trouble would still be trying."""


@dataclass(frozen=True)
class TlsFiles:
    """A certificate authority of the test, and the certificates that it signed."""

    ca: Path
    server: Path
    stranger: Path
    """The certificate of a server with another name."""
    client: Path
    outsider: Path
    """A client certificate of an authority that nobody knows."""

    def options(self, port: int, certificate: Path | None = None) -> dict[str, str]:
        """Lines of a Redis configuration: everything over TLS, except the socket."""
        shown = str(certificate or self.server)
        return {
            "port": "0",
            "tls-port": str(port),
            "tls-cert-file": shown,
            "tls-key-file": shown,
            "tls-ca-cert-file": str(self.ca),
            "tls-auth-clients": "no",
        }


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    authority, home = trustme.CA(), tmp_path_factory.mktemp("tls")

    def signed(name: str, certificate: trustme.LeafCert) -> Path:
        place = home / f"{name}.pem"
        certificate.private_key_and_cert_chain_pem.write_to_path(place)
        return place

    authority.cert_pem.write_to_path(home / "ca.pem")
    return TlsFiles(
        ca=home / "ca.pem",
        server=signed("server", authority.issue_cert(LOOPBACK, "localhost")),
        stranger=signed("stranger", authority.issue_cert("elsewhere.example")),
        client=signed("client", authority.issue_cert("towpath")),
        outsider=signed("outsider", trustme.CA().issue_cert("towpath")),
    )


@contextmanager
def served(files: TlsFiles, **more: str) -> Generator[int]:
    """The port of a Redis that accepts TLS only."""
    port = free_port()
    certificate = Path(more.pop("certificate")) if "certificate" in more else None
    lines = files.options(port, certificate) | {k.replace("_", "-"): v for k, v in more.items()}
    with EmbeddedServer(listen=Listen.SOCKET, options=lines, binary=BINARY):
        yield port


@pytest.fixture(scope="module")
def port(files: TlsFiles) -> Iterator[int]:
    with served(files) as port:
        yield port


def at(port: int, **parameters: object) -> str:
    return f"rediss://{LOOPBACK}:{port}?" + urlencode(parameters)


async def works(url: str) -> None:
    async with Engine(url) as engine:
        for queue in ("a", "b", "c", "d"):  # keys of several slots
            await engine.submit(queue, b"1")
            [lease] = await engine.claim(queue, worker="w1", lease=seconds(30), wait=seconds(HANGS))
            await engine.complete(lease)


async def refusal(url: str) -> str:
    """The error on entering, without waiting for the whole time limit."""
    return str(await refusal_on_entering(TlsFailed, lambda: Engine(url, limits=PATIENT)))


@needs_tls
class TestTheCertificateOfRedis:
    async def test_is_accepted_from_an_authority_that_is_named(
        self, port: int, files: TlsFiles
    ) -> None:
        await works(at(port, ssl_ca_certs=files.ca))

    async def test_is_refused_from_an_authority_that_was_not_named(self, port: int) -> None:
        assert "certificate was refused" in await refusal(at(port))

    async def test_is_refused_for_another_host(self, files: TlsFiles) -> None:
        with served(files, certificate=str(files.stranger)) as port:
            said = await refusal(at(port, ssl_ca_certs=files.ca))
            assert LOOPBACK in said
            await works(at(port, ssl_ca_certs=files.ca, ssl_check_hostname="false"))

    async def test_is_not_checked_if_the_setting_says_so(self, port: int) -> None:
        await works(at(port, ssl_cert_reqs="none"))


@needs_tls
class TestAClientCertificate:
    async def test_is_sent_to_a_redis_that_asks_for_one(self, files: TlsFiles) -> None:
        with served(files, tls_auth_clients="yes") as port:
            await works(at(port, ssl_ca_certs=files.ca, ssl_certfile=files.client))
            assert "refused the TLS connection" in await refusal(at(port, ssl_ca_certs=files.ca))
            outside = at(port, ssl_ca_certs=files.ca, ssl_certfile=files.outsider)
            assert "refused the TLS connection" in await refusal(outside)


async def test_a_redis_that_answers_without_tls_is_reported_as_such() -> None:
    """A Redis that waits for the end of what it takes for a command looks like one that is away."""

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"-ERR Protocol error\r\n")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, LOOPBACK, 0) as plain:
        port = plain.sockets[0].getsockname()[1]
        assert "does not speak TLS" in await refusal(at(port))


@needs_tls
async def test_sentinels_and_their_primary_are_reached_over_tls(files: TlsFiles) -> None:
    own, watching = free_port(), free_port()
    watch = {"sentinel monitor": f"{SERVICE} {LOOPBACK} {own} 1"}
    over_tls = {"tls-replication": "yes"}
    with ExitStack() as running:
        lines = files.options(own) | over_tls
        running.enter_context(EmbeddedServer(listen=Listen.SOCKET, options=lines, binary=BINARY))
        lines = files.options(watching) | over_tls | watch
        running.enter_context(_Sentinel(listen=Listen.SOCKET, options=lines, binary=BINARY))
        url = f"rediss+sentinel://{LOOPBACK}:{watching}/{SERVICE}?"
        await works(url + urlencode({"ssl_ca_certs": files.ca}))
        assert "certificate was refused" in await refusal(url)


@needs_tls
async def test_a_cluster_is_reached_over_tls(files: TlsFiles) -> None:
    ports = [free_port() for _ in range(3)]
    with ExitStack() as running:
        nodes = [running.enter_context(_node(files, port)) for port in ports]
        for number, node in enumerate(nodes):
            node.ask("CLUSTER", "ADDSLOTS", *range(number * 16384 // 3, (number + 1) * 16384 // 3))
            node.ask("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        for port in ports[1:]:
            nodes[0].ask("CLUSTER", "MEET", LOOPBACK, port)
        eventually(lambda: all(_formed(node) for node in nodes))
        url = f"rediss+cluster://{LOOPBACK}:{ports[0]}?"
        await works(url + urlencode({"ssl_ca_certs": files.ca}))
        assert "certificate was refused" in await refusal(url)


def _node(files: TlsFiles, port: int) -> EmbeddedServer:
    lines = files.options(port) | {
        "tls-cluster": "yes",
        "tls-replication": "yes",
        "cluster-enabled": "yes",
        "cluster-config-file": "nodes.conf",
    }
    return EmbeddedServer(listen=Listen.SOCKET, options=lines, binary=BINARY)


def _formed(node: EmbeddedServer) -> bool:
    told = fields(node.ask("CLUSTER", "INFO"))
    return (told["cluster_state"], told["cluster_known_nodes"]) == ("ok", "3")


class _Sentinel(EmbeddedServer):
    def _command(self) -> list[str]:
        return [*super()._command(), "--sentinel"]


@needs_tls
async def test_settings_of_tls_have_the_effect_of_url_parameters(
    port: int, files: TlsFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOWPATH_URL", f"rediss://{LOOPBACK}:{port}?db=2")
    monkeypatch.setenv("TOWPATH_TLS__CA", str(files.ca))
    monkeypatch.setenv("TOWPATH_TLS__CERT", str(files.client))
    monkeypatch.setenv("TOWPATH_TLS__VERIFY", "authority")
    settings = load()
    tls = Tls(ca=str(files.ca), cert=str(files.client), verify=Verify.AUTHORITY)
    assert (settings.address.tls, settings.address.db) == (tls, 2)
    await works(settings.server)


def test_settings_of_tls_need_a_url_of_tls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOWPATH_URL", "redis://h")
    monkeypatch.setenv("TOWPATH_TLS__CA", "/x")
    with pytest.raises(InvalidOption, match="rediss://") as refusal:
        load()
    assert (refusal.value.option, refusal.value.value) == ("url", "redis://h:6379/0")


@needs_tls
async def test_the_documented_user_works_on_redis_7_0_too() -> None:
    """Redis refuses the whole user if it does not know one of the commands."""
    with EmbeddedServer(listen=Listen.SOCKET, binary=BINARY) as server:
        server.ask(*documented_user())
        await works(as_documented_user(server.url))
        assert denied_on(server) == []


async def test_the_documented_user_cannot_read_the_configuration(server: EmbeddedServer) -> None:
    """The configuration has passwords: `requirepass`, `masterauth`, `tls-key-file-pass`."""
    server.ask(*documented_user())
    parsed = parse_url(as_documented_user(server.url))
    client: Any = redis.Redis(
        unix_socket_path=parsed.path, username=parsed.username, password=parsed.password
    )
    async with client:
        for setting in ("requirepass", "appendonly", "*"):
            with pytest.raises(redis.ResponseError, match="permission"):
                await client.config_get(setting)
    async with Engine(as_documented_user(server.url)) as engine:
        assert str(engine.facts.durability) == "memory"
        await engine.submit("mails", b"")


@pytest.mark.parametrize("declared", ["", "replica:1", "often", "DISK"])
def test_a_url_declares_only_a_class_that_exists(declared: str) -> None:
    with pytest.raises(InvalidOption) as refusal:
        parse_url(f"redis://h?durability={declared}")
    assert refusal.value.option == "url"


def test_the_class_in_the_url_can_be_a_setting_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOWPATH_URL", "redis://h?durability=second")
    assert str(load().declared) == "second"
    monkeypatch.setenv("TOWPATH_DURABILITY", "disk")
    assert str(load().declared) == "disk"


@pytest.mark.parametrize("missing", ["+zadd", "+evalsha", "~{*}:*"])
async def test_a_missing_permission_is_reported_as_such(
    server: EmbeddedServer, missing: str
) -> None:
    """Redis reports an error in a script, but the script is right."""
    acl, setuser, _, *rights = documented_user()
    server.ask(acl, setuser, "narrow", *(word for word in rights if word != missing))
    url = as_documented_user(server.url).replace(f"{USER}:", "narrow:")
    try:
        async with Engine(url) as engine:
            with pytest.raises(ServerRefused, match=r"permission|ACL|access"):
                await engine.submit("a", b"1", delay=seconds(1))
    finally:
        server.ask("ACL", "DELUSER", "narrow")


class TestInvalidSettings:
    @pytest.mark.parametrize("name", ["ssl_ca_certs", "ssl_certfile"])
    async def test_a_file_that_does_not_exist_is_named_before_anything_is_sent(
        self, name: str, tmp_path: Path
    ) -> None:
        broken = tmp_path / "broken.pem"
        broken.write_text("no certificate")
        for path in (broken, tmp_path / "none.pem"):
            with pytest.raises(InvalidOption, match=name):
                async with Engine(at(1, **{name: path})):
                    pass

    @pytest.mark.parametrize(
        ("url", "named"),
        [
            ("rediss://h?ssl_ca_cert=/x", "ssl_ca_cert"),
            ("rediss://h?socket_timeout=3", "socket_timeout"),
            ("redis://h?ssl_ca_certs=/x", "rediss://"),
            ("redis://h?sentinel_password=x", "sentinel_password"),
            ("rediss://h?sentinel_ssl=no", "sentinel_ssl"),
            ("rediss://h?ssl_cert_reqs=perhaps", "ssl_cert_reqs"),
            ("rediss://h?ssl_keyfile=/x", "ssl_certfile"),
        ],
    )
    def test_an_unknown_parameter_is_refused(self, url: str, named: str) -> None:
        with pytest.raises(InvalidOption, match=named):
            parse_url(url)
