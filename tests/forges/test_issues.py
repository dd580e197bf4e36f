"""Issues in webhooks, in one vocabulary for both forges."""

from __future__ import annotations

from typing import Any

import pytest

from tests.apps.reviews.deliveries import (
    GITHUB_SECRET,
    GITLAB_TOKEN,
    github,
    gitlab,
    payload,
)
from towpath.forges import github as github_webhooks
from towpath.forges import gitlab as gitlab_webhooks
from towpath.forges.errors import SignatureInvalid, WebhookInvalid
from towpath.forges.facts import Delivery, ForgeAction, ForgeEvent, IssueFact


def github_issue(**changes: Any) -> dict[str, Any]:
    issue = {
        "number": 5,
        "title": "It breaks",
        "body": None,
        "html_url": "https://github.com/octo/repo/issues/5",
        "state": "open",
        "updated_at": "2026-01-01T10:00:00Z",
        "labels": [{"id": 1, "name": "P1"}, {"id": 2, "name": "needs-review"}],
        "user": {"login": "ann"},
    }
    repository = payload("github_push")["repository"]
    return {"action": "opened", "issue": issue | changes, "repository": repository}


def gitlab_issue(**changes: Any) -> dict[str, Any]:
    attributes = {
        "iid": 5,
        "title": "It breaks",
        "description": "Always.",
        "url": "https://gitlab.example.com/group/repo/-/issues/5",
        "state": "opened",
        "action": "open",
        "updated_at": "2026-01-01 10:00:00 UTC",
    }
    project = payload("gitlab_push")["project"]
    labels = [{"id": 1, "title": "P1"}, {"id": 2, "title": "needs-review"}]
    user = {"username": "ann"}
    return {
        "object_attributes": attributes | changes,
        "project": project,
        "labels": labels,
        "user": user,
    }


def from_github(content: dict[str, Any]) -> Delivery:
    sent = github("issues", content)
    return github_webhooks.read(sent.headers, sent.body, secrets=[GITHUB_SECRET])


def from_gitlab(content: dict[str, Any]) -> Delivery:
    sent = gitlab("Issue Hook", content)
    return gitlab_webhooks.read(sent.headers, sent.body, secrets=[GITLAB_TOKEN])


@pytest.mark.parametrize(
    ("delivery", "body"),
    [(from_github(github_issue()), ""), (from_gitlab(gitlab_issue()), "Always.")],
    ids=["github", "gitlab"],
)
def test_an_issue_is_read(delivery: Delivery, body: str) -> None:
    assert delivery.event is ForgeEvent.ISSUE
    assert delivery.acted().action is ForgeAction.OPENED
    issue = delivery.fact()
    assert isinstance(issue, IssueFact)
    assert (issue.number, issue.title, issue.author) == (5, "It breaks", "ann")
    assert issue.labels == ("P1", "needs-review")
    assert issue.body == body
    assert issue.is_open
    assert issue.at_ms == 1_767_261_600_000
    assert issue.page == f"{issue.host}/{issue.repository}"


@pytest.mark.parametrize(
    "delivery",
    [from_github(github_issue(state="closed")), from_gitlab(gitlab_issue(state="closed"))],
    ids=["github", "gitlab"],
)
def test_a_closed_issue_is_read_as_closed(delivery: Delivery) -> None:
    issue = delivery.fact()
    assert isinstance(issue, IssueFact)
    assert not issue.is_open


def test_an_unknown_action_keeps_its_own_name() -> None:
    acted = from_github(github_issue() | {"action": "labeled"}).acted()
    assert (acted.action, acted.said) == (None, "labeled")


@pytest.mark.parametrize(
    ("delivery", "field"),
    [
        (from_github(github_issue(labels="P1")), "issue.labels"),
        (from_gitlab(gitlab_issue(iid="5")), "object_attributes.iid"),
    ],
    ids=["github", "gitlab"],
)
def test_an_invalid_field_is_named_as_the_forge_names_it(delivery: Delivery, field: str) -> None:
    with pytest.raises(WebhookInvalid) as raised:
        delivery.fact()
    assert raised.value.field == field


def test_an_invalid_time_is_named() -> None:
    issue = from_github(github_issue(updated_at="soon")).fact()
    assert isinstance(issue, IssueFact)
    with pytest.raises(WebhookInvalid, match=r"issue\.updated_at"):
        _ = issue.at_ms


def test_no_content_is_read_before_the_signature_is_checked() -> None:
    sent = github("issues", b"no JSON")
    with pytest.raises(SignatureInvalid):
        github_webhooks.read(sent.headers, sent.body, secrets=["another"])
