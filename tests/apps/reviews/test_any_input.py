"""For any input, the answer is a value or an error that has a name (S3, S5).

A failure prints the call that repeats it; `--hypothesis-seed` repeats a whole search.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.apps.reviews.deliveries import (
    GITHUB_SECRET,
    GITLAB_SIGNING_TOKEN,
    GITLAB_TOKEN,
    Delivery,
    github,
    gitlab,
    packed,
    payload,
    read_github,
    read_gitlab,
    signed,
)
from towpath.apps.reviews.errors import ReviewInvalid, TaskInvalid
from towpath.apps.reviews.hooks import Hook
from towpath.apps.reviews.model import Review, ReviewTask, read_review
from towpath.calls.errors import SignatureRefused
from towpath.forges.errors import WebhookInvalid
from towpath.forges.facts import Ignored
from towpath.forges.texts import prose
from towpath.ids import job_id
from towpath.ledger.records.record import new_record

thorough = settings(max_examples=200, deadline=None, print_blob=True)

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
header_texts = st.text(st.characters(codec="latin-1"), max_size=80)
EVENTS = {
    "github_pull_request": "pull_request",
    "github_push": "push",
    "gitlab_merge_request": "Merge Request Hook",
    "gitlab_push": "Push Hook",
}


def paths(value: Any, before: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """The paths to all fields of a payload."""
    if not isinstance(value, dict):
        return [before]
    below = [path for name in value for path in paths(value[name], (*before, name))]  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType] -- any JSON
    return [before, *below] if before else below


@st.composite
def spoilt(draw: st.DrawFn, name: str) -> bytes:
    """A documented payload in which some fields are replaced by any value."""
    whole = payload(name)
    for path in draw(st.lists(st.sampled_from(paths(whole)), min_size=1, max_size=3)):
        place: Any = whole
        for parent in path[:-1]:
            place = place.get(parent, {}) if isinstance(place, dict) else {}  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType] -- any JSON
        if isinstance(place, dict):
            place[path[-1]] = draw(values)
    return packed(whole).replace(b"Infinity", b"1e999")


def answer(sent: Delivery) -> Hook | Ignored | None:
    """The result of reading a genuine delivery; None if it is refused."""
    try:
        if "X-GitHub-Event" in sent.headers:
            return read_github(sent.headers, sent.body, secrets=[GITHUB_SECRET])
        return read_gitlab(sent.headers, sent.body, secrets=[GITLAB_TOKEN])
    except WebhookInvalid:
        return None


def check(got: Hook | Ignored | None) -> None:
    """Checks that a hook can be stored, and that a reason can be shown."""
    if isinstance(got, Hook):
        assert ReviewTask.unpacked(got.task.packed()) == got.task
        stored = new_record(
            "reviews",
            got.task.packed(),
            id=got.id,
            subject=got.subject,
            version=got.version or 0,
            priority=got.priority,
        )
        assert stored.job.id == job_id(got.id)
    elif isinstance(got, Ignored):
        assert 0 < len(got.reason) <= 120
        assert len(got.reason.splitlines()) == 1


def genuine(event: str, body: bytes) -> Delivery:
    return gitlab(event, body) if event.endswith("Hook") else github(event, body)


class TestAGenuineWebhook:
    @pytest.mark.parametrize("event", EVENTS.values())
    @thorough
    @given(body=st.binary())
    def test_of_any_bytes_is_accepted_or_refused(self, event: str, body: bytes) -> None:
        check(answer(genuine(event, body)))

    @pytest.mark.parametrize("event", EVENTS.values())
    @thorough
    @given(value=values)
    def test_of_any_json_is_accepted_or_refused(self, event: str, value: Any) -> None:
        check(answer(genuine(event, packed(value))))

    @pytest.mark.parametrize("name", EVENTS)
    @thorough
    @given(data=st.data())
    def test_with_corrupt_fields_is_accepted_or_refused(
        self, name: str, data: st.DataObject
    ) -> None:
        check(answer(genuine(EVENTS[name], data.draw(spoilt(name)))))

    @thorough
    @given(body=st.binary())
    def test_in_a_form_is_accepted_or_refused(self, body: bytes) -> None:
        sent = github("push", b"payload=" + body)
        form = {"Content-Type": "application/x-www-form-urlencoded"}
        check(answer(Delivery(sent.headers | form, sent.body)))

    @thorough
    @given(event=header_texts, delivery=header_texts)
    def test_with_any_headers_is_accepted_or_refused(self, event: str, delivery: str) -> None:
        check(answer(github(event, payload("github_push"), delivery=delivery)))
        check(answer(gitlab(event, payload("gitlab_push"), delivery=delivery)))


class TestAForgedWebhook:
    @thorough
    @given(signature=header_texts, body=st.binary())
    @example(signature="sha256=", body=b"")
    def test_is_refused_by_the_reader_for_github(self, signature: str, body: bytes) -> None:
        sent = github("push", body, secret=GITHUB_SECRET[::-1])
        for claimed in (signature, f"sha256={signature}", sent.headers["X-Hub-Signature-256"]):
            with pytest.raises(SignatureRefused):
                read_github(
                    sent.headers | {"X-Hub-Signature-256": claimed}, body, secrets=[GITHUB_SECRET]
                )

    @thorough
    @given(token=header_texts, id=header_texts, at=header_texts, body=st.binary())
    def test_is_refused_by_the_reader_for_gitlab(
        self, token: str, id: str, at: str, body: bytes
    ) -> None:
        sent = signed(gitlab("Push Hook", b"another body"))
        claims = {"X-Gitlab-Token": token, "webhook-id": id, "webhook-timestamp": at}
        for headers in (sent.headers, sent.headers | claims, claims):
            for known in (
                [GITLAB_TOKEN],
                [GITLAB_SIGNING_TOKEN],
                [GITLAB_TOKEN, GITLAB_SIGNING_TOKEN],
            ):
                with pytest.raises(SignatureRefused):
                    read_gitlab(headers, body, secrets=known)


class TestTextThatIsParsed:
    @thorough
    @given(output=st.binary() | values.map(packed))
    def test_from_any_reviewer_is_a_review_or_refused(self, output: bytes) -> None:
        try:
            review = read_review(output)
        except ReviewInvalid:
            return
        else:
            assert Review.unpacked(review.packed()) == review

    @thorough
    @given(text=st.text(st.characters(exclude_categories=())))
    def test_from_any_text_is_a_review_or_refused(self, text: str) -> None:
        try:
            review = Review(summary=text)
        except ReviewInvalid:
            assert not prose(text)
        else:
            assert Review.unpacked(review.packed()) == review

    @thorough
    @given(data=st.binary() | values.map(packed))
    def test_from_any_row_is_a_task_or_refused(self, data: bytes) -> None:
        with pytest.raises(TaskInvalid):
            ReviewTask.unpacked(data)
