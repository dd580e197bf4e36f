"""S3: signatures follow Standard Webhooks, checked against its own library."""

from __future__ import annotations

import base64
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from standardwebhooks import Webhook, WebhookVerificationError

from towpath.calls.errors import (
    SecretInvalid,
    SignatureMissing,
    SignatureRefused,
    SignatureStale,
    SignatureWrong,
)
from towpath.calls.signature import derive_secret, headers_for, message_id, new_secret, sign, verify
from towpath.clock import minutes, seconds
from towpath.errors import InvalidOption, RetryAdvice

# The example in the specification.
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"  # noqa: S105 -- published
ID = "msg_p5jXN8AQM9LWM0D4loKWxJek"
TIMESTAMP = 1614265330
BODY = b'{"test": 2432232314}'
SIGNATURE = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="

NOW = datetime.fromtimestamp(TIMESTAMP, UTC)
EXAMPLE = {
    "webhook-id": ID,
    "webhook-timestamp": str(TIMESTAMP),
    "webhook-signature": SIGNATURE,
}

secrets = st.binary(min_size=24, max_size=64).map(
    lambda key: "whsec_" + base64.b64encode(key).decode()
)
ids = st.text(min_size=1, max_size=100).map(message_id)
bodies = st.text().map(str.encode)


class TestSigning:
    def test_gives_the_signature_of_the_specification(self) -> None:
        assert sign(SECRET, ID, TIMESTAMP, BODY) == SIGNATURE

    @given(secret=secrets, id_=ids, body=bodies)
    def test_gives_the_signature_that_the_library_gives(
        self, secret: str, id_: str, body: bytes
    ) -> None:
        theirs = Webhook(secret).sign(id_, NOW, body.decode())
        assert sign(secret, id_, TIMESTAMP, body) == theirs

    @given(secret=secrets, id_=ids, body=bodies)
    def test_is_accepted_by_the_library(self, secret: str, id_: str, body: bytes) -> None:
        Webhook(secret).verify(body, headers_for([secret], id_, body), json_parse=False)

    def test_with_two_secrets_is_accepted_by_a_holder_of_either(self) -> None:
        old, new = new_secret(), new_secret()
        headers = headers_for([old, new], "m1", BODY)
        for secret in (old, new):
            assert Webhook(secret).verify(BODY, headers) == {"test": 2432232314}
        with pytest.raises(WebhookVerificationError):
            Webhook(new_secret()).verify(BODY, headers)

    @pytest.mark.parametrize("id_", ["", "a.b", "a b", "a\nb", "ä", "x" * 1025])
    def test_refuses_an_invalid_id(self, id_: str) -> None:
        with pytest.raises(InvalidOption) as refusal:
            sign(SECRET, id_, TIMESTAMP, BODY)
        assert (refusal.value.option, refusal.value.value) == ("id", id_[:80])

    @pytest.mark.parametrize("secrets", [[], "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"])
    def test_needs_a_list_of_secrets(self, secrets: list[str]) -> None:
        with pytest.raises(InvalidOption) as refusal:
            headers_for(secrets, ID, BODY)
        assert refusal.value.option == "secrets"


class TestVerifying:
    def test_accepts_the_example_of_the_specification(self) -> None:
        verified = verify([SECRET], EXAMPLE, BODY, now=NOW)
        assert (verified.id, verified.sent) == (ID, NOW)

    @given(secret=secrets, id_=st.uuids().map(str), body=bodies)
    def test_accepts_what_the_library_signs(self, secret: str, id_: str, body: bytes) -> None:
        headers = {
            "Webhook-Id": id_,
            "Webhook-Timestamp": str(TIMESTAMP),
            "Webhook-Signature": Webhook(secret).sign(id_, NOW, body.decode()),
        }
        assert verify([secret], headers, body, now=NOW).id == id_

    @pytest.mark.parametrize("place", range(3))
    def test_accepts_any_of_several_secrets(self, place: int) -> None:
        secrets = [new_secret() for _ in range(3)]
        headers = headers_for([secrets[place]], "m1", BODY)
        assert verify(secrets, headers, BODY).id == "m1"

    @pytest.mark.parametrize(
        "signatures",
        [
            f"v1,aaaa {SIGNATURE}",
            f"{SIGNATURE} v1,aaaa",
            f"v1a,aaaa v2,bbbb {SIGNATURE}",
            f"v1,!!!! v1, v1 {SIGNATURE}",
        ],
    )
    def test_accepts_any_of_several_signatures(self, signatures: str) -> None:
        verify([SECRET], EXAMPLE | {"webhook-signature": signatures}, BODY, now=NOW)

    @pytest.mark.parametrize(
        "changed",
        [
            {"webhook-id": "msg_other"},
            {"webhook-timestamp": str(TIMESTAMP + 1)},
            {"webhook-signature": "v1," + "A" * 43 + "="},
            {"webhook-signature": SIGNATURE[:-3] + "A=="},
            {"webhook-signature": "v1," + SIGNATURE[3:].rstrip("=")},
            {"webhook-signature": "v1,ä"},
            {"webhook-signature": "v1,"},
            {"webhook-signature": " ".join(["v1,aaaa"] * 32 + [SIGNATURE])},
        ],
    )
    def test_refuses_a_message_that_was_changed(self, changed: dict[str, str]) -> None:
        with pytest.raises(SignatureWrong) as refusal:
            verify([SECRET], EXAMPLE | changed, BODY, now=NOW)
        assert refusal.value.retry is RetryAdvice.NEVER

    @pytest.mark.parametrize("body", [b"", BODY + b" ", BODY[:-1], b'{"test":2432232314}'])
    def test_refuses_another_body(self, body: bytes) -> None:
        with pytest.raises(SignatureWrong):
            verify([SECRET], EXAMPLE, body, now=NOW)

    def test_refuses_another_secret(self) -> None:
        with pytest.raises(SignatureWrong):
            verify([new_secret(), new_secret()], EXAMPLE, BODY, now=NOW)

    @pytest.mark.parametrize("header", list(EXAMPLE))
    @pytest.mark.parametrize("value", ["", None])
    def test_refuses_a_message_without_its_headers(self, header: str, value: str | None) -> None:
        headers = {name: text for name, text in EXAMPLE.items() if name != header}
        if value is not None:
            headers[header] = value
        with pytest.raises(SignatureMissing) as refusal:
            verify([SECRET], headers, BODY, now=NOW)
        assert refusal.value.header == header

    @pytest.mark.parametrize("time", ["-1", "1e9", "1.5", "١٢٣", " 1", "9" * 13, "nan", "0x1"])
    def test_refuses_an_invalid_time(self, time: str) -> None:
        with pytest.raises(SignatureMissing) as refusal:
            verify([SECRET], EXAMPLE | {"webhook-timestamp": time}, BODY, now=NOW)
        assert refusal.value.header == "webhook-timestamp"

    @pytest.mark.parametrize("off", [timedelta(0), minutes(5), minutes(-5)])
    def test_tolerates_clocks_that_differ_by_five_minutes(self, off: timedelta) -> None:
        verify([SECRET], EXAMPLE, BODY, now=NOW + off)

    @pytest.mark.parametrize("off", [seconds(301), seconds(-301), timedelta(days=400)])
    def test_refuses_a_message_that_is_too_old_or_from_the_future(self, off: timedelta) -> None:
        with pytest.raises(SignatureStale) as refusal:
            verify([SECRET], EXAMPLE, BODY, now=NOW + off)
        assert (refusal.value.off, refusal.value.tolerance) == (off.total_seconds(), 300)

    def test_uses_the_tolerance_that_is_asked_for(self) -> None:
        verify([SECRET], EXAMPLE, BODY, now=NOW + seconds(9), tolerance=seconds(10))
        with pytest.raises(SignatureStale):
            verify([SECRET], EXAMPLE, BODY, now=NOW + seconds(11), tolerance=seconds(10))

    @pytest.mark.parametrize("secrets", [[], SECRET])
    def test_needs_a_list_of_secrets(self, secrets: list[str]) -> None:
        """Without any secret every message would be refused, and nobody would notice the
        mistake.
        """
        with pytest.raises(InvalidOption) as refusal:
            verify(secrets, EXAMPLE, BODY, now=NOW)
        assert refusal.value.option == "secrets"

    @given(headers=st.dictionaries(st.sampled_from(list(EXAMPLE)), st.text()), body=st.binary())
    def test_refuses_malformed_headers_with_its_own_error(
        self, headers: dict[str, str], body: bytes
    ) -> None:
        with pytest.raises(SignatureRefused):
            verify([SECRET], headers, body, now=NOW)


class TestASecret:
    def test_is_new_each_time_and_signs(self) -> None:
        one, other = new_secret(), new_secret()
        assert one != other
        assert one.startswith("whsec_")
        assert len(base64.b64decode(one.removeprefix("whsec_"))) == 32

    def test_may_be_without_prefix_and_padding(self) -> None:
        secret = "whsec_" + base64.b64encode(bytes(25)).decode()
        for spelling in (secret, secret.removeprefix("whsec_"), secret.rstrip("=")):
            assert sign(spelling, ID, 1, BODY) == sign(secret, ID, 1, BODY)

    @pytest.mark.parametrize(
        "secret",
        ["", "whsec_", "whsec_!!!!", "whsec_MfKQ9r8GKYqr", "whsec_" + "A" * 88, "pässword", "a"],
    )
    def test_that_is_invalid_is_refused_without_being_repeated(self, secret: str) -> None:
        with pytest.raises(SecretInvalid) as refusal:
            sign(secret, ID, 1, BODY)
        assert not secret or secret not in str(refusal.value).split()
        assert refusal.value.__cause__ is None


class TestAMessageId:
    @pytest.mark.parametrize("text", ["01JB7Q", "user-1:7", "a_b~c", "msg,1"])
    def test_is_the_text_itself_where_possible(self, text: str) -> None:
        assert message_id(text) == text

    @pytest.mark.parametrize("text", ["a.b", "a b", "ä", "a%b", "a/b", "a\nb"])
    def test_can_always_be_signed(self, text: str) -> None:
        assert sign(SECRET, message_id(text), 1, BODY)

    @given(one=st.text(), other=st.text())
    def test_differs_for_another_text(self, one: str, other: str) -> None:
        assert (message_id(one) == message_id(other)) == (one == other)


class TestADerivedSecret:
    def test_differs_for_each_purpose(self) -> None:
        purposes = ("push", "callback", "outbox", "reviewer")
        made = {derive_secret(SECRET, purpose) for purpose in purposes}
        assert len(made | {SECRET}) == len(purposes) + 1

    def test_is_the_same_each_time_and_signs_like_any_other(self) -> None:
        secret = derive_secret(SECRET, "push")
        assert secret == derive_secret(SECRET, "push")
        headers = headers_for([secret], "m1", BODY)
        assert verify([secret], headers, BODY).id == "m1"
        for other in (SECRET, derive_secret(SECRET, "callback")):
            with pytest.raises(SignatureWrong):
                verify([other], headers, BODY)

    def test_from_an_invalid_secret_is_refused(self) -> None:
        with pytest.raises(SecretInvalid):
            derive_secret("whsec_short", "push")
