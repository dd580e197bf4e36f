"""Sends requests to an S3 server, signed as AWS documents it (Signature Version 4)."""

import hashlib
import hmac
import http.client
from datetime import UTC, datetime
from urllib.parse import urlsplit

from tests.waiting import HANGS

_SERVICE = ("us-east-1", "s3", "aws4_request")


def ask(
    url: str, method: str, path: str, body: bytes = b"", *, access: str, secret: str
) -> tuple[int, bytes]:
    """The status and body of the answer."""
    place = urlsplit(url).netloc
    now = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    digest = hashlib.sha256(body).hexdigest()
    headers = {"host": place, "x-amz-content-sha256": digest, "x-amz-date": now}
    scope = "/".join((now[:8], *_SERVICE))
    names = ";".join(headers)
    lines = "".join(f"{name}:{value}\n" for name, value in headers.items())
    canonical = "\n".join([method, path, "", lines, names, digest])
    hashed = hashlib.sha256(canonical.encode()).hexdigest()
    text = "\n".join(["AWS4-HMAC-SHA256", now, scope, hashed])
    key = f"AWS4{secret}".encode()
    for part in (now[:8], *_SERVICE):
        key = hmac.digest(key, part.encode(), "sha256")
    signature = hmac.digest(key, text.encode(), "sha256").hex()
    headers["authorization"] = (
        f"AWS4-HMAC-SHA256 Credential={access}/{scope}, "
        f"SignedHeaders={names}, Signature={signature}"
    )
    return _sent(place, method, path, body, headers)


def _sent(
    place: str, method: str, path: str, body: bytes, headers: dict[str, str]
) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(place, timeout=HANGS)
    try:
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def plain(port: int, path: str, method: str = "GET") -> int:
    """The status of an unsigned request."""
    return _sent(f"127.0.0.1:{port}", method, path, b"", {})[0]
