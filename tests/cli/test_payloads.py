"""Payloads and results of every kind in the JSON output."""

import pytest

from towpath.cli.listing import content


@pytest.mark.parametrize(
    ("body", "shown"),
    [
        (None, {}),
        (b'{"n": 1}', {"payload": {"n": 1}}),
        (b"null", {"payload": None}),
        (b"hello", {"payload_text": "hello"}),
        (b"", {"payload_text": ""}),
        (b"NaN", {"payload_text": "NaN"}),
        (b"[" * 50_000, {"payload_text": "[" * 50_000}),
        (b"\xff\x00", {"payload_base64": "/wA="}),
    ],
)
def test_payloads_are_shown_as_values_texts_or_bytes(
    body: bytes | None, shown: dict[str, object]
) -> None:
    assert content("payload", body) == shown
