"""GitHub's webhooks: `pull_request` and `push`.

A pull request is reviewed when it is opened, reopened, gets new commits or stops being a draft.
A draft is not: whoever opens one says that it is not to be reviewed yet, and `ready_for_review`
comes by itself. Pushes are reviewed branch by branch; tags and deleted branches are not.

https://docs.github.com/en/webhooks/webhook-events-and-payloads
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from urllib.parse import parse_qsl

import msgspec

from towpath.apps.reviews.decoding import decoded
from towpath.apps.reviews.errors import WebhookInvalid
from towpath.apps.reviews.hooks.hook import Hook, Ignored
from towpath.apps.reviews.hooks.reading import (
    branch_of,
    commit_or_none,
    delivery_id,
    event_name,
    host_of,
    lower,
    milliseconds,
    task_of,
)
from towpath.apps.reviews.hooks.signing import check_hub_signature
from towpath.apps.reviews.model import Action, Forge, Kind
from towpath.apps.reviews.texts import is_url, one_line

EVENT, DELIVERY = "X-GitHub-Event", "X-GitHub-Delivery"
_ACTIONS = {
    "opened": Action.OPENED,
    "reopened": Action.REOPENED,
    "synchronize": Action.UPDATED,
    "ready_for_review": Action.READY,
}
_FORM = "application/x-www-form-urlencoded"
_FORM_FIELDS_MOST = 10
_LATEST = 2**32
"""Seconds since 1970: the year 2106."""


def read(headers: Mapping[str, str], body: bytes, *, secrets: Sequence[str]) -> Hook | Ignored:
    """What a delivery asks for. *body* is what came over the wire.

    Nothing of it is looked at before its signature was found good: SignatureInvalid. Raises
    WebhookInvalid for a message that lacks what GitHub documents.
    """
    found = lower(headers)
    check_hub_signature(secrets, found, body)
    event, delivery = event_name(EVENT, found), delivery_id(DELIVERY, found)
    if event == "pull_request":
        return _pull(delivery, _json(found, body))
    if event == "push":
        return _push(delivery, _json(found, body))
    return Ignored(event)


def _json(headers: Mapping[str, str], body: bytes) -> bytes:
    """The JSON of a body: the whole, or the form's one field."""
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != _FORM:
        return body
    try:
        fields = parse_qsl(body.decode("ascii"), errors="strict", max_num_fields=_FORM_FIELDS_MOST)
    except ValueError as error:
        raise WebhookInvalid("body", "must be a form with the field payload") from error
    payloads = [value for name, value in fields if name == "payload"]
    if len(payloads) != 1:
        raise WebhookInvalid("payload", "must be in the form once")
    return payloads[0].encode()


class _Repository(msgspec.Struct):
    full_name: str
    html_url: str
    clone_url: str
    pushed_at: int | str | None = None


# ── pull requests ────────────────────────────────────────────────────────────────────────


class _User(msgspec.Struct):
    login: str = ""


class _Side(msgspec.Struct):
    ref: str
    sha: str


class _Pull(msgspec.Struct):
    number: int
    title: str
    html_url: str
    updated_at: str
    head: _Side
    base: _Side
    user: _User | None = None
    draft: bool = False
    state: str = "open"


class _Acted(msgspec.Struct):
    action: str


class _PullRequest(msgspec.Struct):
    pull_request: _Pull
    repository: _Repository
    before: str | None = None


_ACTED = msgspec.json.Decoder(_Acted)
_PULL_REQUEST = msgspec.json.Decoder(_PullRequest)
_PULL_NAMES = {
    "repository": "repository.full_name",
    "clone_url": "repository.clone_url",
    "host": "repository.html_url",
    "number": "pull_request.number",
    "head": "pull_request.head.sha",
    "ref": "pull_request.head.ref",
    "base": "pull_request.base.sha",
    "target": "pull_request.base.ref",
    "url": "pull_request.html_url",
}


def _pull(delivery: str, data: bytes) -> Hook | Ignored:
    said = decoded(_ACTED, data, refusal=WebhookInvalid, whole="body").action
    action = _ACTIONS.get(said)
    if action is None:
        return Ignored(f"pull_request {one_line(said, most=64)}")
    event = decoded(_PULL_REQUEST, data, refusal=WebhookInvalid, whole="body")
    pull, repository = event.pull_request, event.repository
    if pull.state != "open":
        return Ignored("the pull request is closed")
    if pull.draft:
        return Ignored("a draft waits for ready_for_review")
    task = task_of(
        _PULL_NAMES,
        forge=Forge.GITHUB,
        kind=Kind.PULL,
        action=action,
        repository=repository.full_name,
        number=pull.number,
        head=pull.head.sha,
        ref=pull.head.ref,
        base=pull.base.sha,
        target=pull.base.ref,
        before=commit_or_none(event.before),
        title=pull.title,
        author=pull.user.login if pull.user else "",
        url=pull.html_url,
        clone_url=repository.clone_url,
        host=host_of("repository.html_url", repository.html_url, repository.full_name),
    )
    version = milliseconds("pull_request.updated_at", pull.updated_at)
    return Hook(delivery=delivery, task=task, version=version)


# ── pushes ───────────────────────────────────────────────────────────────────────────────


class _Commit(msgspec.Struct):
    message: str = ""


class _Pusher(msgspec.Struct):
    name: str = ""


class _Push(msgspec.Struct):
    ref: str
    before: str
    after: str
    compare: str
    repository: _Repository
    deleted: bool = False
    pusher: _Pusher | None = None
    head_commit: _Commit | None = None


_PUSH = msgspec.json.Decoder(_Push)
_PUSH_NAMES = {
    "repository": "repository.full_name",
    "clone_url": "repository.clone_url",
    "host": "repository.html_url",
    "head": "after",
}


def _push(delivery: str, data: bytes) -> Hook | Ignored:
    event = decoded(_PUSH, data, refusal=WebhookInvalid, whole="body")
    branch, repository = branch_of(event.ref), event.repository
    if branch is None:
        return Ignored("a push to what is no branch")
    if event.deleted or commit_or_none(event.after) is None:
        return Ignored("the branch was deleted")
    task = task_of(
        _PUSH_NAMES,
        forge=Forge.GITHUB,
        kind=Kind.PUSH,
        action=Action.PUSHED,
        repository=repository.full_name,
        head=event.after,
        ref=branch,
        before=commit_or_none(event.before),
        title=event.head_commit.message.partition("\n")[0] if event.head_commit else "",
        author=event.pusher.name if event.pusher else "",
        url=_page(event),
        clone_url=repository.clone_url,
        host=host_of("repository.html_url", repository.html_url, repository.full_name),
    )
    return Hook(delivery=delivery, task=task, version=_pushed(event))


def _page(event: _Push) -> str:
    """The page for people; that of the commit where a branch's name makes the other one none."""
    page = event.compare
    return page if is_url(page) else f"{event.repository.html_url}/commit/{event.after}"


def _pushed(event: _Push) -> int | None:
    """When GitHub took the push, by its own clock; None if it does not say."""
    match event.repository.pushed_at:
        case int(seconds):
            if not 0 <= seconds < _LATEST:
                raise WebhookInvalid("repository.pushed_at", "must be a time in seconds")
            return seconds * 1000
        case str(text):
            return milliseconds("repository.pushed_at", text)
        case _:
            return None
