"""TLS without an event loop: a private certificate authority, client certificates, and refusals."""

import pytest

from tests.blocking.engine_without_loop import engine_here
from tests.spec.test_tls import TlsFiles, at, files, needs_tls, port, served
from towpath.clock import minutes
from towpath.engine.blocking import run_to_end
from towpath.engine.channel import Limits
from towpath.errors import TlsFailed

__all__ = ["files", "port"]
PATIENT = Limits(answer=minutes(10), give_up=minutes(20))


def works(url: str) -> None:
    with engine_here(url, limits=PATIENT) as engine:
        for size in (1, 300_000):
            payload = bytes(size)
            job = run_to_end(engine.submit("mails", payload)).job
            assert run_to_end(engine.inspect.job(job)).payload == payload


def refused(url: str) -> None:
    with pytest.raises(TlsFailed), engine_here(url, limits=PATIENT):
        pass


@needs_tls
class TestTlsWithoutALoop:
    def test_accepts_a_certificate_of_an_authority_that_is_named(
        self, files: TlsFiles, port: int
    ) -> None:
        works(at(port, ssl_ca_certs=files.ca))

    def test_refuses_a_certificate_of_an_authority_that_was_not_named(self, port: int) -> None:
        refused(at(port))

    def test_sends_a_client_certificate(self, files: TlsFiles) -> None:
        with served(files, **{"tls-auth-clients": "yes"}) as asking:
            works(at(asking, ssl_ca_certs=files.ca, ssl_certfile=files.client))
            refused(at(asking, ssl_ca_certs=files.ca))
            refused(at(asking, ssl_ca_certs=files.ca, ssl_certfile=files.outsider))
