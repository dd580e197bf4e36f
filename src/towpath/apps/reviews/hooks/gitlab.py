"""GitLab's webhooks: `Merge Request Hook` and `Push Hook`.

A merge request is reviewed when it is opened, reopened, gets new commits (GitLab then says what
the branch was at before, `oldrev`) or stops being a draft. A draft is not, as on GitHub. Pushes
are reviewed branch by branch; tags and deleted branches are not.

https://docs.gitlab.com/user/project/integrations/webhook_events/
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from datetime import datetime

import msgspec

from towpath.apps.reviews.decoding import decoded
from towpath.apps.reviews.errors import WebhookInvalid
from towpath.apps.reviews.hooks.hook import Hook, Ignored
from towpath.apps.reviews.hooks.reading import (
    branch_of,
    checked_delivery,
    commit_or_none,
    event_name,
    host_of,
    lower,
    milliseconds,
    task_of,
)
from towpath.apps.reviews.hooks.signing import check_gitlab
from towpath.apps.reviews.model import Action, Forge, Kind
from towpath.apps.reviews.texts import one_line
from towpath.calls.signature import ID

EVENT, DELIVERY, EVENT_ID = "X-Gitlab-Event", "Idempotency-Key", "X-Gitlab-Event-UUID"
_DIGEST = 32
"""Hexadecimal digits: as many as a UUID has."""


def read(
    headers: Mapping[str, str],
    body: bytes,
    *,
    secrets: Sequence[str],
    now: datetime | None = None,
) -> Hook | Ignored:
    """What a delivery asks for. *body* is what came over the wire; *now* replaces the clock that
    signed messages are compared with.

    Nothing of it is looked at before its signature or token was found good: SignatureRefused.
    Raises WebhookInvalid for a message that lacks what GitLab documents.
    """
    found = lower(headers)
    signed = check_gitlab(secrets, found, body, now=now)
    event = event_name(EVENT, found)
    delivery = checked_delivery(ID, signed) if signed else _delivery(found, body)
    if event == "Merge Request Hook":
        return _merge_request(delivery, body)
    if event == "Push Hook":
        return _push(delivery, body)
    return Ignored(event)


def _delivery(headers: Mapping[str, str], body: bytes) -> str:
    """The key that is the same for all attempts; GitLab before 17.4 has none.

    There the event's id alone won't do, since hooks that set off each other share it; nor the
    body alone, which is the same when a branch goes back and forth.
    """
    if key := headers.get(DELIVERY.lower(), ""):
        return checked_delivery(DELIVERY, key)
    event_id = headers.get(EVENT_ID.lower(), "").encode("latin-1", "backslashreplace")
    return hashlib.sha256(event_id + b"\0" + body).hexdigest()[:_DIGEST]


class _Project(msgspec.Struct):
    path_with_namespace: str
    web_url: str
    git_http_url: str


_PROJECT_NAMES = {
    "repository": "project.path_with_namespace",
    "clone_url": "project.git_http_url",
    "host": "project.web_url",
}


# ── merge requests ───────────────────────────────────────────────────────────────────────


class _User(msgspec.Struct):
    username: str = ""


class _Head(msgspec.Struct):
    id: str


class _Acted(msgspec.Struct):
    action: str | None = None
    oldrev: str | None = None


class _MergeRequest(msgspec.Struct):
    iid: int
    title: str
    source_branch: str
    target_branch: str
    url: str
    updated_at: str
    last_commit: _Head | None = None
    state: str = "opened"
    draft: bool | None = None
    work_in_progress: bool | None = None


class _Flag(msgspec.Struct):
    previous: bool | None = None
    current: bool | None = None


class _Changes(msgspec.Struct):
    draft: _Flag | None = None


class _Action(msgspec.Struct):
    object_attributes: _Acted
    changes: _Changes | None = None


class _MergeRequestEvent(msgspec.Struct):
    object_attributes: _MergeRequest
    project: _Project
    user: _User | None = None


_ACTION = msgspec.json.Decoder(_Action)
_MERGE_REQUEST = msgspec.json.Decoder(_MergeRequestEvent)
_MERGE_REQUEST_NAMES = _PROJECT_NAMES | {
    "number": "object_attributes.iid",
    "head": "object_attributes.last_commit.id",
    "before": "object_attributes.oldrev",
    "ref": "object_attributes.source_branch",
    "target": "object_attributes.target_branch",
    "url": "object_attributes.url",
}


def _merge_request(delivery: str, body: bytes) -> Hook | Ignored:
    said = decoded(_ACTION, body, refusal=WebhookInvalid, whole="body")
    action = _meant(said)
    if action is None:
        named = one_line(said.object_attributes.action or "without an action", most=64)
        return Ignored(f"merge request {named}, no new commits")
    event = decoded(_MERGE_REQUEST, body, refusal=WebhookInvalid, whole="body")
    merge, project = event.object_attributes, event.project
    if merge.state != "opened":
        return Ignored("the merge request is closed")
    if merge.draft or merge.work_in_progress:
        return Ignored("a draft waits until it is ready")
    if merge.last_commit is None:
        return Ignored("the merge request has no commits")
    task = task_of(
        _MERGE_REQUEST_NAMES,
        forge=Forge.GITLAB,
        kind=Kind.PULL,
        action=action,
        repository=project.path_with_namespace,
        number=merge.iid,
        head=merge.last_commit.id,
        ref=merge.source_branch,
        target=merge.target_branch,
        before=commit_or_none(said.object_attributes.oldrev),
        title=merge.title,
        author=event.user.username if event.user else "",
        url=merge.url,
        clone_url=project.git_http_url,
        host=host_of("project.web_url", project.web_url, project.path_with_namespace),
    )
    version = milliseconds("object_attributes.updated_at", merge.updated_at)
    return Hook(delivery=delivery, task=task, version=version)


def _meant(said: _Action) -> Action | None:
    """What happened, if it is something to review."""
    draft = said.changes.draft if said.changes else None
    match said.object_attributes.action:
        case "open":
            return Action.OPENED
        case "reopen":
            return Action.REOPENED
        case "update" if draft and draft.previous and not draft.current:
            return Action.READY
        case "update" if said.object_attributes.oldrev:
            return Action.UPDATED
        case _:
            return None


# ── pushes ───────────────────────────────────────────────────────────────────────────────


class _Commit(msgspec.Struct):
    id: str
    message: str = ""


class _Push(msgspec.Struct):
    ref: str
    before: str
    after: str
    project: _Project
    user_username: str = ""
    commits: list[_Commit] = []


_PUSH = msgspec.json.Decoder(_Push)
_PUSH_NAMES = _PROJECT_NAMES | {"head": "after", "url": "project.web_url"}


def _push(delivery: str, body: bytes) -> Hook | Ignored:
    event = decoded(_PUSH, body, refusal=WebhookInvalid, whole="body")
    branch, project = branch_of(event.ref), event.project
    if branch is None:
        return Ignored("a push to what is no branch")
    if commit_or_none(event.after) is None:
        return Ignored("the branch was deleted")
    head = next((commit for commit in event.commits if commit.id == event.after), None)
    task = task_of(
        _PUSH_NAMES,
        forge=Forge.GITLAB,
        kind=Kind.PUSH,
        action=Action.PUSHED,
        repository=project.path_with_namespace,
        head=event.after,
        ref=branch,
        before=commit_or_none(event.before),
        title=head.message.partition("\n")[0] if head else "",
        author=event.user_username,
        url=f"{project.web_url}/-/commit/{event.after}",
        clone_url=project.git_http_url,
        host=host_of("project.web_url", project.web_url, project.path_with_namespace),
    )
    return Hook(delivery=delivery, task=task, version=None)
