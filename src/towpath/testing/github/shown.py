"""The JSON of the GitHub double's state, as GitHub's API and its webhooks have it.

All fields that GitHub's description requires are there; fields that Towpath never reads have
plausible values.
"""

from __future__ import annotations

from typing import Any

from towpath.testing.github.state import (
    GitHubComment,
    GitHubIssue,
    GitHubRepository,
    GitHubReview,
    Pull,
    sha_of,
)

Json = dict[str, Any]

_USER_URLS = (
    "events", "followers", "following", "gists", "organizations", "received_events", "repos",
    "starred", "subscriptions",
)  # fmt: skip
_REPOSITORY_URLS = (
    "archive", "assignees", "blobs", "branches", "collaborators", "comments", "commits",
    "compare", "contents", "contributors", "deployments", "downloads", "events", "forks",
    "git_commits", "git_refs", "git_tags", "hooks", "issue_comment", "issue_events", "issues",
    "keys", "labels", "languages", "merges", "milestones", "notifications", "pulls", "releases",
    "stargazers", "statuses", "subscribers", "subscription", "tags", "teams", "trees",
)  # fmt: skip
_ISSUE_FIELDS = (
    "id", "number", "title", "body", "user", "labels", "state", "locked", "assignee",
    "assignees", "milestone", "created_at", "updated_at", "closed_at", "author_association",
    "active_lock_reason",
)  # fmt: skip
_ZERO_FIELDS = (
    "forks", "forks_count", "size", "stargazers_count", "watchers", "watchers_count",
    "network_count", "subscribers_count",
)  # fmt: skip
_FALSE_FIELDS = (
    "private", "fork", "has_projects", "has_wiki", "has_pages", "has_discussions",
    "has_downloads", "archived", "disabled",
)  # fmt: skip
_NULL_FIELDS = (
    "description", "mirror_url", "homepage", "language", "license",
)  # fmt: skip


def node(kind: str, id: int) -> str:
    return f"{kind}_{id:012x}"


def number_of(login: str) -> int:
    return int(sha_of(login)[:7], 16)


class Shown:
    """Makes the JSON of everything on one double, with its addresses."""

    def __init__(self, api: str) -> None:
        self.api = api
        self.page = api
        """The base URL of pages for people. The double has no pages: its API is at that URL."""

    def user(self, login: str) -> Json:
        url = f"{self.api}/users/{login}"
        id = number_of(login)
        return {
            "login": login,
            "id": id,
            "node_id": node("U", id),
            "avatar_url": f"{self.page}/avatars/{id}",
            "gravatar_id": "",
            "url": url,
            "html_url": f"{self.page}/{login}",
            **{f"{name}_url": f"{url}/{name}" for name in _USER_URLS},
            "type": "Bot" if login.endswith("-bot") else "User",
            "site_admin": False,
        }

    def repository(self, repository: GitHubRepository) -> Json:
        url = f"{self.api}/repos/{repository.full_name}"
        html = f"{self.page}/{repository.full_name}"
        opened = sum(each.closed_at is None for each in repository.issues.values())
        return {
            "id": repository.id,
            "node_id": node("R", repository.id),
            "name": repository.name,
            "full_name": repository.full_name,
            "owner": self.user(repository.owner),
            "html_url": html,
            "url": url,
            **{f"{name}_url": f"{url}/{name}" for name in _REPOSITORY_URLS},
            **dict.fromkeys(("clone_url", "git_url", "ssh_url", "svn_url"), f"{html}.git"),
            **dict.fromkeys(_ZERO_FIELDS, 0),
            **dict.fromkeys(_FALSE_FIELDS, False),
            **dict.fromkeys(_NULL_FIELDS),
            "default_branch": repository.default_branch,
            "open_issues": opened,
            "open_issues_count": opened,
            "has_issues": True,
            "topics": [],
            "visibility": "public",
            **dict.fromkeys(("pushed_at", "created_at", "updated_at"), repository.created_at),
        }

    def label(self, repository: GitHubRepository, name: str) -> Json:
        label = repository.label(name)
        return {
            "id": label.id,
            "node_id": node("LA", label.id),
            "url": f"{self.api}/repos/{repository.full_name}/labels/{label.name}",
            "name": label.name,
            "color": label.color,
            "default": False,
            "description": label.description,
        }

    def labels(self, repository: GitHubRepository, issue: GitHubIssue) -> list[Json]:
        return [self.label(repository, name) for name in issue.labels]

    def issue(self, repository: GitHubRepository, issue: GitHubIssue) -> Json:
        url = f"{self.api}/repos/{repository.full_name}"
        html = f"{self.page}/{repository.full_name}"
        own = f"{url}/issues/{issue.number}"
        assignees = [self.user(login) for login in issue.assignees]
        kind = "pull" if issue.pull else "issues"
        shown = {
            "url": own,
            "repository_url": url,
            "labels_url": f"{own}/labels{{/name}}",
            "comments_url": f"{own}/comments",
            "events_url": f"{own}/events",
            "html_url": f"{html}/{kind}/{issue.number}",
            "id": issue.id,
            "node_id": node("I", issue.id),
            "number": issue.number,
            "title": issue.title,
            "user": self.user(issue.author),
            "labels": self.labels(repository, issue),
            "state": issue.state,
            "locked": False,
            "assignee": assignees[0] if assignees else None,
            "assignees": assignees,
            **dict.fromkeys(("milestone", "active_lock_reason", "performed_via_github_app")),
            "comments": len(issue.comments),
            "created_at": issue.created_at,
            "updated_at": issue.updated_at,
            "closed_at": issue.closed_at,
            "author_association": "MEMBER",
            "body": issue.body,
            "state_reason": "completed" if issue.closed_at else None,
            "reactions": self._reactions(own),
        }
        if issue.pull:
            pull, page = f"{url}/pulls/{issue.number}", f"{html}/pull/{issue.number}"
            links = {"url": pull, "html_url": page, "diff_url": f"{page}.diff"}
            shown["pull_request"] = {**links, "patch_url": f"{page}.patch"}
            shown["draft"] = issue.pull.draft
        return shown

    def _reactions(self, own: str) -> Json:
        kinds = ("+1", "-1", "laugh", "confused", "heart", "hooray", "eyes", "rocket")
        return {"url": f"{own}/reactions", "total_count": 0, **dict.fromkeys(kinds, 0)}

    def comment(
        self, repository: GitHubRepository, issue: GitHubIssue, comment: GitHubComment
    ) -> Json:
        url = f"{self.api}/repos/{repository.full_name}/issues"
        html = f"{self.page}/{repository.full_name}/issues/{issue.number}"
        own = f"{url}/comments/{comment.id}"
        return {
            "id": comment.id,
            "node_id": node("IC", comment.id),
            "url": own,
            "html_url": f"{html}#issuecomment-{comment.id}",
            "issue_url": f"{url}/{issue.number}",
            "body": comment.body,
            "user": self.user(comment.author),
            "created_at": comment.at,
            "updated_at": comment.at,
            "author_association": "MEMBER",
            "performed_via_github_app": None,
            "reactions": self._reactions(own),
        }

    def ref(self, repository: GitHubRepository, name: str) -> Json:
        url, sha = f"{self.api}/repos/{repository.full_name}/git", repository.refs[name]
        target = {"type": "commit", "sha": sha, "url": f"{url}/commits/{sha}"}
        return {
            "ref": name,
            "node_id": node("REF", number_of(name)),
            "url": f"{url}/{name}",
            "object": target,
        }

    def branch(self, repository: GitHubRepository, name: str) -> Json:
        url = f"{self.api}/repos/{repository.full_name}/branches/{name}"
        html = f"{self.page}/{repository.full_name}/tree/{name}"
        return {
            "name": name,
            "commit": self._commit(repository, repository.refs[f"refs/heads/{name}"]),
            "_links": {"self": url, "html": html},
            "protected": False,
            "protection": {"enabled": False},
            "protection_url": f"{url}/protection",
        }

    def _commit(self, repository: GitHubRepository, sha: str) -> Json:
        url = f"{self.api}/repos/{repository.full_name}"
        person = {"name": "O", "email": "o@example.com", "date": repository.created_at}
        tree = {"sha": sha_of(sha), "url": f"{url}/git/trees/{sha_of(sha)}"}
        return {
            "url": f"{url}/commits/{sha}",
            "sha": sha,
            "node_id": node("C", int(sha[:7], 16)),
            "html_url": f"{self.page}/{repository.full_name}/commit/{sha}",
            "comments_url": f"{url}/commits/{sha}/comments",
            "commit": {
                "url": f"{url}/git/commits/{sha}",
                "author": person,
                "committer": person,
                "message": "a commit",
                "comment_count": 0,
                "tree": tree,
            },
            "author": self.user(repository.owner),
            "committer": self.user(repository.owner),
            "parents": [],
        }

    def pull(self, repository: GitHubRepository, issue: GitHubIssue) -> Json:
        assert issue.pull is not None  # noqa: S101 -- whoever asks has looked
        plain, places = self.issue(repository, issue), self._places(repository, issue, issue.pull)
        return {
            **{name: plain[name] for name in _ISSUE_FIELDS},
            "node_id": node("PR", issue.id),
            "url": places["self"],
            **{f"{name}_url": place for name, place in places.items() if name != "self"},
            "diff_url": f"{places['html']}.diff",
            "patch_url": f"{places['html']}.patch",
            "_links": {name: {"href": place} for name, place in places.items()},
            "merged_at": issue.pull.merged_at,
            "merged": issue.pull.merged_at is not None,
            "draft": issue.pull.draft,
            **dict.fromkeys(("merge_commit_sha", "auto_merge", "merged_by")),
            "requested_reviewers": [],
            "requested_teams": [],
            "mergeable": True,
            "mergeable_state": "clean",
            "rebaseable": True,
            "maintainer_can_modify": False,
            **dict.fromkeys(("comments", "review_comments", "deletions"), 0),
            **dict.fromkeys(("commits", "additions", "changed_files"), 1),
            **self._sides(repository, issue.pull),
        }

    def _places(
        self, repository: GitHubRepository, issue: GitHubIssue, pull: Pull
    ) -> dict[str, str]:
        url = f"{self.api}/repos/{repository.full_name}"
        own, plain = f"{url}/pulls/{issue.number}", f"{url}/issues/{issue.number}"
        return {
            "self": own,
            "html": f"{self.page}/{repository.full_name}/pull/{issue.number}",
            "issue": plain,
            "comments": f"{plain}/comments",
            "review_comments": f"{own}/comments",
            "review_comment": f"{url}/pulls/comments{{/number}}",
            "commits": f"{own}/commits",
            "statuses": f"{url}/statuses/{pull.sha}",
        }

    def _sides(self, repository: GitHubRepository, pull: Pull) -> Json:
        sides = {"head": (pull.head, pull.sha), "base": (pull.base, pull.base_sha)}
        shared = {"repo": self.repository(repository), "user": self.user(repository.owner)}
        return {
            side: {"label": f"{repository.owner}:{ref}", "ref": ref, "sha": sha, **shared}
            for side, (ref, sha) in sides.items()
        }

    def review(
        self, repository: GitHubRepository, issue: GitHubIssue, review: GitHubReview
    ) -> Json:
        url = f"{self.api}/repos/{repository.full_name}/pulls/{issue.number}"
        html = (
            f"{self.page}/{repository.full_name}/pull/{issue.number}#pullrequestreview-{review.id}"
        )
        return {
            "id": review.id,
            "node_id": node("PRR", review.id),
            "user": self.user(review.author),
            "body": review.body,
            "state": review.state,
            "html_url": html,
            "pull_request_url": url,
            "author_association": "MEMBER",
            "_links": {"html": {"href": html}, "pull_request": {"href": url}},
            "submitted_at": review.at,
            "commit_id": review.commit,
        }
