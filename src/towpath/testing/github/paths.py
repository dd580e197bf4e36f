"""The paths of GitHub's API that the double has."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from typing import Any, cast
from urllib.parse import unquote, urlencode

from towpath.testing.github.exchange import (
    DOCUMENTED,
    ApiRequest,
    EarlyAnswer,
    Reply,
    invalid,
    refused,
)
from towpath.testing.github.shown import Json, Shown
from towpath.testing.github.state import (
    ROBOT,
    GitHubIssue,
    GitHubRepository,
    GitHubReview,
    Pull,
    sha_of,
)

_PAGE_MOST, _PAGE = 100, 30
_REPOSITORY = r"/repos/(?P<owner>[^/]+)/(?P<name>[^/]+)"
_BY_ID = re.compile(r"/repositories/(?P<id>[0-9]+)(?P<rest>/.*)?")

EmitEvent = Callable[..., None]
"""`(event, action, repository, issue, **more)`: sends the webhooks of an event."""


class Api:
    """Answers requests from the state of the repositories. The caller makes one call at a time."""

    def __init__(
        self,
        shown: Shown,
        repositories: dict[str, GitHubRepository],
        moved: dict[str, str],
        emit: EmitEvent,
    ) -> None:
        self._shown, self._repositories, self._moved = shown, repositories, moved
        self._emit = emit
        self._lists: dict[tuple[int, str], tuple[int, list[GitHubIssue]]] = {}

    def answer(self, request: ApiRequest) -> Reply:
        """The answer; 404 for what is not there, 501 for what the double does not know."""
        path = request.path
        try:
            if by_id := _BY_ID.fullmatch(path):
                path = f"/repos/{self._by_id(int(by_id['id']))}{by_id['rest'] or ''}"
            for method, pattern, answer in _PATHS:
                if method == request.method and (found := pattern.fullmatch(path)):
                    parts = {name: unquote(part) for name, part in found.groupdict().items()}
                    name = f"{parts.pop('owner')}/{parts.pop('name')}"
                    return answer(self, request, self._repository(request, name), **parts)
        except EarlyAnswer as early:
            return early.reply
        return Reply(501, {"message": f"the double has no {request.method} {request.path}"})

    # ── objects that requests name ───────────────────────────────────────────────────────

    def _by_id(self, id: int) -> str:
        for repository in self._repositories.values():
            if repository.id == id:
                return repository.full_name
        raise refused(404, "Not Found")

    def _repository(self, request: ApiRequest, name: str) -> GitHubRepository:
        found = self._repositories.get(name.lower())
        if found is not None:
            return found
        if (new := self._moved.get(name.lower())) is not None:
            there = self._repositories.get(new.lower())
            if there is not None:
                rest = "/".join(request.path.split("/")[4:])
                raise self._redirect(request, f"/repositories/{there.id}/{rest}".rstrip("/"))
        raise refused(404, "Not Found")

    def _redirect(self, request: ApiRequest, path: str) -> EarlyAnswer:
        url = self._shown.api + path
        if request.query:
            url += "?" + urlencode(
                [(name, value) for name, all in request.query.items() for value in all]
            )
        status, message = (301, "Moved Permanently") if request.method == "GET" else (
            307,
            "Temporary Redirect",
        )  # fmt: skip
        body = {"message": message, "url": url, "documentation_url": DOCUMENTED}
        return EarlyAnswer(Reply(status, body, {"location": url}))

    def _issue(self, request: ApiRequest, repository: GitHubRepository, number: str) -> GitHubIssue:
        found = repository.issues.get(int(number))
        if found is None:
            raise refused(404, "Not Found")
        if found.moved is not None:
            if not found.moved:
                raise refused(410, "This issue was deleted")
            where, _, new = found.moved.partition("#")
            rest = "/".join(request.path.split("/")[6:])
            path = f"/repositories/{self._repositories[where.lower()].id}/issues/{new}/{rest}"
            raise self._redirect(request, path.rstrip("/"))
        return found

    def _pull(self, repository: GitHubRepository, number: str) -> tuple[GitHubIssue, Pull]:
        found = repository.issues.get(int(number))
        if found is None or found.pull is None:
            raise refused(404, "Not Found")
        return found, found.pull

    def _page(self, request: ApiRequest, entries: list[Any], show: Callable[[Any], Json]) -> Reply:
        size = min(int(request.one("per_page", str(_PAGE))), _PAGE_MOST)
        page = int(request.one("page", "1"))
        last = max(1, -(-len(entries) // size))
        links = {"prev": page - 1, "next": page + 1, "last": last, "first": 1}
        shown = {"prev": page > 1, "next": page < last, "last": page < last, "first": page > 1}
        kept = [
            (name, value) for name, all in request.query.items() for value in all if name != "page"
        ]
        at = self._shown.api + request.path
        found = [
            f'<{at}?{urlencode([*kept, ("page", links[name])])}>; rel="{name}"'
            for name in links
            if shown[name]
        ]
        headers = {"link": ", ".join(found)} if found else {}
        return Reply(
            200, [show(entry) for entry in entries[size * (page - 1) : size * page]], headers
        )

    # ── repositories and branches ────────────────────────────────────────────────────────

    def repository(self, _: ApiRequest, repository: GitHubRepository) -> Reply:
        return Reply(200, self._shown.repository(repository))

    def branch(self, _: ApiRequest, repository: GitHubRepository, branch: str) -> Reply:
        if f"refs/heads/{branch}" not in repository.refs:
            raise refused(404, "Branch not found")
        return Reply(200, self._shown.branch(repository, branch))

    def ref(self, _: ApiRequest, repository: GitHubRepository, ref: str) -> Reply:
        if f"refs/{ref}" not in repository.refs:
            raise refused(404, "Not Found")
        return Reply(200, self._shown.ref(repository, f"refs/{ref}"))

    def make_ref(self, request: ApiRequest, repository: GitHubRepository) -> Reply:
        name, sha = str(request.content["ref"]), str(request.content["sha"])
        if not name.startswith("refs/") or name.count("/") < 2:
            raise invalid("Reference", "ref", "Reference name must start with 'refs'")
        if sha not in repository.refs.values():
            raise invalid("Reference", "sha", "Object does not exist")
        if name in repository.refs:
            raise refused(422, "Reference already exists")
        repository.refs[name] = sha
        repository.changed()
        return Reply(201, self._shown.ref(repository, name))

    def delete_ref(self, _: ApiRequest, repository: GitHubRepository, ref: str) -> Reply:
        if repository.refs.pop(f"refs/{ref}", None) is None:
            raise refused(422, "Reference does not exist")
        repository.changed()
        return Reply(204)

    # ── issues ───────────────────────────────────────────────────────────────────────────

    def issues(self, request: ApiRequest, repository: GitHubRepository) -> Reply:
        # A list is selected once for all of its pages, until something changes.
        kept = {
            name: all for name, all in request.query.items() if name not in ("page", "per_page")
        }
        key = (repository.id, json.dumps(kept, sort_keys=True))
        made = self._lists.get(key)
        if made is None or made[0] != repository.revision:
            made = self._lists[key] = (
                repository.revision,
                _select_issues(request, repository.issues.values()),
            )
        return self._page(request, made[1], lambda issue: self._shown.issue(repository, issue))

    def issue(self, request: ApiRequest, repository: GitHubRepository, number: str) -> Reply:
        found = self._issue(request, repository, number)
        return Reply(200, self._shown.issue(repository, found))

    def change_issue(self, request: ApiRequest, repository: GitHubRepository, number: str) -> Reply:
        issue, fields = self._issue(request, repository, number), _fields(request)
        for name in ("title", "body"):
            if name in fields and fields[name] != getattr(issue, name):
                setattr(issue, name, fields[name])
                repository.changed(issue)
                self._emit("issues", "edited", repository, issue, sender=ROBOT)
        if "labels" in fields:
            self._set_labels(repository, issue, _names(fields["labels"]))
        if "state" in fields and repository.set_open(issue, is_open=fields["state"] == "open"):
            action = "closed" if issue.closed_at else "reopened"
            self._emit("issues", action, repository, issue, sender=ROBOT)
        return Reply(200, self._shown.issue(repository, issue))

    # ── labels ───────────────────────────────────────────────────────────────────────────

    def issue_labels(self, request: ApiRequest, repository: GitHubRepository, number: str) -> Reply:
        issue = self._issue(request, repository, number)
        return self._page(request, issue.labels, lambda name: self._shown.label(repository, name))

    def add_labels(self, request: ApiRequest, repository: GitHubRepository, number: str) -> Reply:
        issue = self._issue(request, repository, number)
        for name in repository.add_labels(issue, _names(request.content)):
            self._emit("issues", "labeled", repository, issue, label=name, sender=ROBOT)
        return Reply(200, self._shown.labels(repository, issue))

    def set_labels(self, request: ApiRequest, repository: GitHubRepository, number: str) -> Reply:
        issue = self._issue(request, repository, number)
        self._set_labels(repository, issue, _names(request.content))
        return Reply(200, self._shown.labels(repository, issue))

    def remove_label(
        self, request: ApiRequest, repository: GitHubRepository, number: str, label: str
    ) -> Reply:
        issue = self._issue(request, repository, number)
        if not repository.remove_labels(issue, [label]):
            raise refused(404, "Label does not exist")
        self._emit("issues", "unlabeled", repository, issue, label=label, sender=ROBOT)
        return Reply(200, self._shown.labels(repository, issue))

    def _set_labels(
        self, repository: GitHubRepository, issue: GitHubIssue, names: list[str]
    ) -> None:
        kept = {name.lower() for name in names}
        gone = [name for name in issue.labels if name.lower() not in kept]
        for name in repository.remove_labels(issue, gone):
            self._emit("issues", "unlabeled", repository, issue, label=name, sender=ROBOT)
        for name in repository.add_labels(issue, names):
            self._emit("issues", "labeled", repository, issue, label=name, sender=ROBOT)

    def labels(self, request: ApiRequest, repository: GitHubRepository) -> Reply:
        names = [label.name for label in repository.labels.values()]
        return self._page(request, names, lambda name: self._shown.label(repository, name))

    def label(self, _: ApiRequest, repository: GitHubRepository, label: str) -> Reply:
        if label.lower() not in repository.labels:
            raise refused(404, "Not Found")
        return Reply(200, self._shown.label(repository, label))

    def make_label(self, request: ApiRequest, repository: GitHubRepository) -> Reply:
        fields = request.content
        if fields["name"].lower() in repository.labels:
            raise invalid("Label", "name")
        made = repository.label(fields["name"])
        made.color, made.description = (
            fields.get("color", made.color),
            fields.get("description", ""),
        )
        return Reply(201, self._shown.label(repository, made.name))

    # ── comments ─────────────────────────────────────────────────────────────────────────

    def comments(self, request: ApiRequest, repository: GitHubRepository, number: str) -> Reply:
        issue = self._issue(request, repository, number)
        return self._page(
            request, issue.comments, lambda each: self._shown.comment(repository, issue, each)
        )

    def make_comment(self, request: ApiRequest, repository: GitHubRepository, number: str) -> Reply:
        issue = self._issue(request, repository, number)
        made = repository.comment(issue, str(request.content["body"]), ROBOT)
        self._emit("issue_comment", "created", repository, issue, comment=made, sender=ROBOT)
        return Reply(201, self._shown.comment(repository, issue, made))

    # ── pull requests ────────────────────────────────────────────────────────────────────

    def pulls(self, request: ApiRequest, repository: GitHubRepository) -> Reply:
        state = request.one("state", "open")
        found = [
            issue
            for issue in sorted(repository.issues.values(), key=lambda issue: -issue.number)
            if issue.pull
            and state in ("all", issue.state)
            and request.one("head", "") in ("", issue.pull.head)
        ]
        return self._page(request, found, lambda issue: self._shown.pull(repository, issue))

    def pull(self, _: ApiRequest, repository: GitHubRepository, number: str) -> Reply:
        issue, _pull = self._pull(repository, number)
        return Reply(200, self._shown.pull(repository, issue))

    def make_pull(self, request: ApiRequest, repository: GitHubRepository) -> Reply:
        fields = request.content
        refs = [repository.refs.get(f"refs/heads/{fields[side]}") for side in ("head", "base")]
        if refs[0] is None or refs[1] is None:
            raise invalid("PullRequest", "base" if refs[0] else "head")
        pull = Pull(
            fields["head"], fields["base"], refs[0], refs[1], draft=bool(fields.get("draft"))
        )
        made = repository.add(fields["title"], fields.get("body"), author=ROBOT, pull=pull)
        self._emit("pull_request", "opened", repository, made, sender=ROBOT)
        return Reply(201, self._shown.pull(repository, made))

    def reviews(self, request: ApiRequest, repository: GitHubRepository, number: str) -> Reply:
        issue, pull = self._pull(repository, number)
        return self._page(
            request, pull.reviews, lambda each: self._shown.review(repository, issue, each)
        )

    def make_review(self, request: ApiRequest, repository: GitHubRepository, number: str) -> Reply:
        issue, pull = self._pull(repository, number)
        fields = _fields(request)
        state = {
            "APPROVE": "APPROVED",
            "REQUEST_CHANGES": "CHANGES_REQUESTED",
            "COMMENT": "COMMENTED",
        }
        made = GitHubReview(
            repository.next_id(),
            state.get(fields.get("event", ""), "PENDING"),
            fields.get("body", ""),
            ROBOT,
            fields.get("commit_id", pull.sha),
        )
        pull.reviews.append(made)
        repository.changed(issue)
        self._emit("pull_request_review", "submitted", repository, issue, review=made, sender=ROBOT)
        return Reply(200, self._shown.review(repository, issue, made))

    def make_status(self, request: ApiRequest, repository: GitHubRepository, sha: str) -> Reply:
        fields, id = request.content, repository.next_id()
        given = {name: fields.get(name) for name in ("state", "description", "target_url")}
        user = self._shown.user(ROBOT)
        return Reply(
            201,
            {
                **given,
                "url": f"{self._shown.api}/repos/{repository.full_name}/statuses/{sha}",
                "avatar_url": user["avatar_url"],
                "id": id,
                "node_id": sha_of(str(id)),
                "context": fields.get("context", "default"),
                "created_at": repository.created_at,
                "updated_at": repository.created_at,
                "creator": user,
            },
        )


def _fields(request: ApiRequest) -> dict[str, Any]:
    return request.content or {}


def _names(fields: Any) -> list[str]:
    """The names of labels in a request: a list, or an object with one, of strings or objects."""
    given = cast("dict[str, Any]", fields)["labels"] if isinstance(fields, dict) else fields
    return [label if isinstance(label, str) else label["name"] for label in given]


def _select_issues(request: ApiRequest, issues: Iterable[GitHubIssue]) -> list[GitHubIssue]:
    """The list of issues that a query asks for, in its order."""
    state, since = request.one("state", "open"), request.one("since")
    labels = {label.lower() for label in request.one("labels").split(",") if label}
    found = [
        issue
        for issue in issues
        if issue.moved is None
        and state in ("all", issue.state)
        and issue.updated_at >= since
        and labels <= {name.lower() for name in issue.labels}
    ]
    by: dict[str, Callable[[GitHubIssue], Any]] = {
        "created": lambda issue: issue.number,
        "updated": lambda issue: (issue.updated_at, issue.number),
        "comments": lambda issue: len(issue.comments),
    }
    key = by[request.one("sort", "created")]
    return sorted(found, key=key, reverse=request.one("direction", "desc") == "desc")


def _paths() -> list[tuple[str, re.Pattern[str], Callable[..., Reply]]]:
    issue, pull = "/issues/(?P<number>[0-9]+)", "/pulls/(?P<number>[0-9]+)"
    listed = [
        ("GET", "", Api.repository),
        ("GET", "/branches/(?P<branch>.+)", Api.branch),
        ("GET", "/git/ref/(?P<ref>.+)", Api.ref),
        ("POST", "/git/refs", Api.make_ref),
        ("DELETE", "/git/refs/(?P<ref>.+)", Api.delete_ref),
        ("GET", "/issues", Api.issues),
        ("GET", issue, Api.issue),
        ("PATCH", issue, Api.change_issue),
        ("GET", f"{issue}/labels", Api.issue_labels),
        ("POST", f"{issue}/labels", Api.add_labels),
        ("PUT", f"{issue}/labels", Api.set_labels),
        ("DELETE", f"{issue}/labels/(?P<label>[^/]+)", Api.remove_label),
        ("GET", f"{issue}/comments", Api.comments),
        ("POST", f"{issue}/comments", Api.make_comment),
        ("GET", "/labels", Api.labels),
        ("POST", "/labels", Api.make_label),
        ("GET", "/labels/(?P<label>[^/]+)", Api.label),
        ("GET", "/pulls", Api.pulls),
        ("POST", "/pulls", Api.make_pull),
        ("GET", pull, Api.pull),
        ("GET", f"{pull}/reviews", Api.reviews),
        ("POST", f"{pull}/reviews", Api.make_review),
        ("POST", "/statuses/(?P<sha>[0-9a-f]+)", Api.make_status),
    ]
    return [(method, re.compile(_REPOSITORY + path), answer) for method, path, answer in listed]


_PATHS = _paths()
