"""Headers that decide something may come only once: two programs could use different ones of
several.
"""

import json

import pytest

from tests.server.serving import RawConnection, RunningServer, code
from towpath.web.auth import ONCE

ROOT = "/api/v1/uploads"
ORIGIN = "https://files.example"


def answer(running: RunningServer, line: str, *headers: str) -> tuple[int, str]:
    """Status and code of the answer."""
    with RawConnection(running) as connection:
        connection.send("\r\n".join((f"{line} HTTP/1.1", "Host: x", *headers, "", "")))
        status, _, body = connection.answer()
        return status, json.loads(body).get("type", "").rpartition("/")[2]


@pytest.mark.parametrize("name", sorted(name.decode() for name in ONCE))
def test_a_repeated_header_that_decides_something_is_refused(
    running: RunningServer, name: str
) -> None:
    key = f"Authorization: Bearer {running.key}"
    for values in (("a", "a"), ("a", "b")):
        sent = [f"{name}: {value}" for value in values]
        assert answer(running, "GET /api/v1/queues", key, *sent) == (400, "header-repeated")
        assert answer(running, "GET /", *sent) == (400, "header-repeated")


def test_a_valid_key_beside_a_wrong_one_is_refused(running: RunningServer) -> None:
    right, wrong = running.key, "tp_wrong"
    for keys in ((right, wrong), (wrong, right)):
        for form in ("Authorization: Bearer {}", "X-API-Key: {}"):
            sent = [form.format(key) for key in keys]
            assert answer(running, "GET /api/v1/queues", *sent) == (400, "header-repeated")


def test_a_credential_is_refused_with_a_second_origin(running: RunningServer) -> None:
    body = {"name": "a", "size": 5, "credential": {"origin": ORIGIN}}
    upload = running.client().post(ROOT, json=body).json()
    path, token = f"GET {ROOT}/{upload['upload_id']}", upload["credential"]["credential"]
    key = f"Authorization: Bearer {token}"
    own, other = f"Origin: {ORIGIN}", "Origin: https://other.example"
    assert answer(running, path, key, own)[0] == 200
    assert answer(running, path, key, other) == (403, "credential-origin")
    for origins in ((own, other), (other, own), (own, own)):
        assert answer(running, path, key, *origins) == (400, "header-repeated")


def test_other_headers_may_come_twice(running: RunningServer) -> None:
    headers = [("Accept", "text/html"), ("Accept", "application/json"), ("X-Forwarded-For", "::1")]
    asked = running.client().get("/api/v1/queues", headers=[*headers, ("X-Forwarded-For", "::1")])
    assert asked.status_code == 200
    without = running.client(key="").get("/api/v1/queues", headers=headers)
    assert code(without, 401) == "unauthorized"
