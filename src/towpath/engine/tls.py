"""TLS to Redis: trusted authorities, client certificates, and why a handshake failed."""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Callable, Mapping
from enum import StrEnum
from functools import partial
from typing import Any

from towpath.errors import InvalidOption, TlsFailed
from towpath.options import Options
from towpath.supervise import expect_loss

LISTEN_SECONDS = 1.0
"""How long to listen to a Redis server that took the handshake and then ended the connection."""


class Verify(StrEnum):
    """How the certificate of a Redis server is checked."""

    FULL = "full"
    """It must come from a trusted authority, and be for the host that was asked for."""
    AUTHORITY = "authority"
    """It must come from a trusted authority; which host it is for does not matter."""
    NONE = "none"
    """Any certificate is taken: the connection is encrypted, but anybody may be at its other end.
    """


class Tls(Options, frozen=True, kw_only=True):
    """TLS to Redis, for rediss:// URLs. The paths are those of PEM files."""

    ca: str | None = None
    """PEM file of authorities to trust in addition to the system's."""
    cert: str | None = None
    """The client certificate, for servers that ask for one."""
    key: str | None = None
    """The certificate's private key; default: in the same file."""
    verify: Verify = Verify.FULL
    """How to check the server's certificate: full, authority (not its host name) or none."""
    sentinels: bool = True
    """Whether to connect to the sentinels over TLS as well."""

    @classmethod
    def of(cls, query: Mapping[str, str]) -> Tls:
        """The options that the parameters of a URL set. Raises ValueError with the rule as text."""
        files = {field: query[name] for name, field in _FILES.items() if name in query}
        if "key" in files and "cert" not in files:
            raise ValueError("names ssl_keyfile without ssl_certfile")
        verify = Verify.FULL if _flag(query, "ssl_check_hostname", _YES) else Verify.AUTHORITY
        if not _flag(query, "ssl_cert_reqs", _REQUIRED):
            verify = Verify.NONE
        return cls(**files, verify=verify, sentinels=_flag(query, "sentinel_ssl", _YES))

    @property
    def parameters(self) -> dict[str, str]:
        """The parameters of a URL that set these options."""
        asked = {name: getattr(self, field) for name, field in _FILES.items()}
        if self.verify is Verify.AUTHORITY:
            asked["ssl_check_hostname"] = "false"
        if self.verify is Verify.NONE:
            asked["ssl_cert_reqs"] = "none"
        if not self.sentinels:
            asked["sentinel_ssl"] = "false"
        return {name: value for name, value in asked.items() if value is not None}

    def context(self) -> ssl.SSLContext:
        """The SSL context of connections. Raises InvalidOption for a file that can't be read, or is
        not the right kind of PEM file.
        """
        context = ssl.create_default_context()
        if self.ca is not None:
            _load_file("tls.ca (ssl_ca_certs)", self.ca, context.load_verify_locations)
        if self.cert is not None:
            show = partial(context.load_cert_chain, keyfile=self.key)
            _load_file("tls.cert (ssl_certfile)", self.cert, show)
        context.check_hostname = self.verify is Verify.FULL
        context.verify_mode = ssl.CERT_NONE if self.verify is Verify.NONE else ssl.CERT_REQUIRED
        return context


_FILES = {"ssl_ca_certs": "ca", "ssl_certfile": "cert", "ssl_keyfile": "key"}
_REQUIRED = {"required": True, "cert_required": True, "none": False, "cert_none": False}
_YES = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
PARAMETERS = frozenset({*_FILES, "ssl_cert_reqs", "ssl_check_hostname"})
"""The parameters of a URL about TLS, with the names of redis-py."""
SENTINEL_PARAMETER = "sentinel_ssl"


def _flag(query: Mapping[str, str], name: str, words: Mapping[str, bool]) -> bool:
    text = query.get(name, "true" if words is _YES else "required").lower()
    if text not in words:
        raise ValueError(f"must have one of these for {name}: {', '.join(words)}")
    return words[text]


def _load_file(name: str, path: str, load: Callable[[str], object]) -> None:
    try:
        load(path)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        rule = f"must name a PEM file that can be read ({why})"
        raise InvalidOption(name, path, rule=rule) from error


# ── a handshake that failed ──────────────────────────────────────────────────────────────

_REASON = re.compile(r"\[SSL: (\w+)\]([^(\[]*)")
_NOT_TLS = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE", "UNKNOWN_PROTOCOL")
_CONNECTION_BROKEN = ("UNEXPECTED_EOF", "EOF_OCCURRED", "APPLICATION_DATA_AFTER_CLOSE_NOTIFY")
"""The connection broke during the handshake: that is temporary, as for any connection."""


def failed_handshake(error: BaseException) -> TlsFailed | None:
    """The TLS failure behind an error of a connection; None if there is none, or it is temporary.

    The error of the handshake may be the cause of another error.
    """
    cause: BaseException | None = error
    while cause is not None:
        found = _REASON.search(str(cause))
        if found and not found[1].startswith(_CONNECTION_BROKEN):
            return _handshake_failure(found[1], found[2])
        cause = cause.__cause__ or cause.__context__
    return None


def _handshake_failure(reason: str, words: str) -> TlsFailed:
    if reason == "CERTIFICATE_VERIFY_FAILED":
        why = words.removeprefix(" certificate verify failed:").strip()
        return TlsFailed(f"the server's certificate was refused: {why}")
    if reason in _NOT_TLS:
        return TlsFailed("the server does not speak TLS on this port")
    if "ALERT" in reason:
        alert = reason.partition("ALERT_")[2].replace("_", " ").lower()
        return TlsFailed(f"the server refused the TLS connection: {alert}")
    return TlsFailed(f"the TLS connection failed: {words.strip() or reason.lower()}")


async def refusal_at(place: Mapping[str, Any]) -> ssl.SSLError | None:
    """The error of a server that refuses our certificate; None if it sends no such error.

    The server sends it after the handshake. If we send something meanwhile, its system resets the
    connection and discards the error, so this only listens.
    """
    writer: asyncio.StreamWriter | None = None
    try:
        async with asyncio.timeout(LISTEN_SECONDS):
            reader, writer = await asyncio.open_connection(**place)
            expect_loss(writer)
            await reader.read(1)
    except ssl.SSLError as error:
        return error
    except OSError:
        return None
    finally:
        if writer is not None:
            writer.transport.abort()
    return None
