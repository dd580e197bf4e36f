"""Deliveries like those of GitHub: a pull request of about 20 kB, signed.

https://docs.github.com/en/webhooks/webhook-events-and-payloads#pull_request describes the fields.
Most of a real one are URLs that no code reads; a server has to parse them all the same.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterator, Sequence
from itertools import count, islice
from typing import Any

import msgspec

SECRET = "0123456789abcdef0123456789abcdef"  # noqa: S105 -- of a server that lives for a minute
PATH = "/api/v1/webhooks/github"
RECORD = "github-{}"
"""What the record of a delivery is called."""
_API, _WEB = "https://api.github.com", "https://github.com"
_NUMBER, _HEAD = 4_040_404, "0f" * 20
"""What stands in the template for what differs between deliveries."""
_OF_A_USER = (
    "followers", "following{/other_user}", "gists{/gist_id}", "starred{/owner}{/repo}",
    "subscriptions", "orgs", "repos", "events{/privacy}", "received_events",
)  # fmt: skip
_OF_A_REPOSITORY = (
    "forks", "keys{/key_id}", "collaborators{/collaborator}", "teams", "hooks",
    "issues/events{/number}", "events", "assignees{/user}", "branches{/branch}", "tags",
    "git/blobs{/sha}", "git/tags{/sha}", "git/refs{/sha}", "git/trees{/sha}", "statuses/{sha}",
    "languages", "stargazers", "contributors", "subscribers", "subscription", "commits{/sha}",
    "git/commits{/sha}", "comments{/number}", "issues/comments{/number}", "contents/{+path}",
    "compare/{base}...{head}", "merges", "{archive_format}{/ref}", "downloads", "issues{/number}",
    "pulls{/number}", "milestones{/number}", "notifications{?since,all,participating}",
    "labels{/name}", "releases{/id}", "deployments",
)  # fmt: skip
_COUNTS = (
    "size", "stargazers_count", "watchers_count", "forks_count", "open_issues_count", "forks",
    "open_issues", "watchers",
)  # fmt: skip
_FACTS = (
    "has_issues", "has_projects", "has_downloads", "has_wiki", "has_pages", "has_discussions",
    "archived", "disabled", "allow_forking", "is_template", "web_commit_signoff_required",
    "allow_squash_merge", "allow_merge_commit", "allow_rebase_merge", "allow_auto_merge",
    "delete_branch_on_merge", "allow_update_branch", "use_squash_pr_title_as_default",
)  # fmt: skip


_numbers = count(1)


def deliveries(wanted: int) -> Iterator[tuple[str, bytes]]:
    """The id of each record, and the request for it: each about another pull request.

    They are made one by one, because thousands would fill the memory. What differs comes last, so
    that only the end is signed anew: a few µs each.
    """
    same, between, end = _template()
    signed = hmac.new(SECRET.encode(), same, hashlib.sha256)
    for number in islice(_numbers, wanted):
        delivery, rest = f"bench-{number}", b"%040x%s%d%s" % (number, between, number, end)
        signature = signed.copy()
        signature.update(rest)
        yield RECORD.format(delivery), _request(delivery, signature.hexdigest(), same + rest)


def _request(delivery: str, signature: str, body: bytes) -> bytes:
    lines = (
        f"POST {PATH} HTTP/1.1",
        "Host: bench",
        "User-Agent: GitHub-Hookshot/044aadd",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        f"X-GitHub-Delivery: {delivery}",
        "X-GitHub-Event: pull_request",
        "X-GitHub-Hook-ID: 292430182",
        f"X-Hub-Signature-256: sha256={signature}",
    )
    return "\r\n".join([*lines, "", ""]).encode() + body


def _template() -> tuple[bytes, bytes, bytes]:
    """The body in three pieces: the head and the number of the pull request come between them."""
    whole = msgspec.json.encode(_pull_request())
    same, head, rest = whole.partition(_HEAD.encode())
    between, number, end = rest.partition(str(_NUMBER).encode())
    assert head
    assert number
    return same, between, end


def _pull_request() -> dict[str, Any]:
    repository, fork = _repository("octo/hello-world"), _repository("monalisa/hello-world")
    return {
        "action": "synchronize",
        "before": "2d" * 20,
        "after": "3c" * 20,
        "repository": repository,
        "sender": _user("monalisa"),
        "pull_request": {
            "base": _side("octo:main", "main", "1e" * 20, repository),
            "state": "open",
            "locked": False,
            "draft": False,
            "title": "Read the settings once, and say where each of them comes from",
            "body": "Settings were read wherever they were needed. " * 20,
            "url": f"{_API}/repos/octo/hello-world/pulls/7",
            "html_url": f"{_WEB}/octo/hello-world/pull/7",
            "user": _user("monalisa"),
            "created_at": "2026-01-01T09:58:00Z",
            "updated_at": "2026-01-01T10:00:00Z",
            "assignees": [_user("monalisa")],
            "requested_reviewers": [_user("hubot")],
            "labels": [],
            "_links": {
                name: {"href": f"{_API}/repos/octo/hello-world/pulls/7/{name}"}
                for name in ("self", "html", "issue", "comments", "review_comments", "commits")
            },
            "author_association": "CONTRIBUTOR",
            "commits": 3,
            "additions": 120,
            "deletions": 80,
            "changed_files": 9,
            "head": _side("monalisa:changes", "changes", _HEAD, fork),
            "number": _NUMBER,
        },
    }


def _side(label: str, ref: str, sha: str, repository: dict[str, Any]) -> dict[str, Any]:
    owner = repository["owner"]
    return {"label": label, "ref": ref, "user": owner, "repo": repository, "sha": sha}


def _user(login: str) -> dict[str, Any]:
    url = f"{_API}/users/{login}"
    return {
        "login": login,
        "id": 21031067,
        "node_id": "MDQ6VXNlcjIxMDMxMDY3",
        "avatar_url": "https://avatars.githubusercontent.com/u/21031067?v=4",
        "url": url,
        "html_url": f"{_WEB}/{login}",
        **_addresses(url, _OF_A_USER),
        "type": "User",
        "site_admin": False,
    }


def _repository(name: str) -> dict[str, Any]:
    owner, _, short = name.partition("/")
    url = f"{_API}/repos/{name}"
    return {
        "id": 186853002,
        "node_id": "MDEwOlJlcG9zaXRvcnkxODY4NTMwMDI=",
        "name": short,
        "full_name": name,
        "private": False,
        "owner": _user(owner),
        "html_url": f"{_WEB}/{name}",
        "description": "Our first repository, and the one that everybody looks at.",
        "fork": owner != "octo",
        "url": url,
        **_addresses(url, _OF_A_REPOSITORY),
        "created_at": "2019-05-15T15:19:25Z",
        "updated_at": "2026-01-01T09:19:27Z",
        "pushed_at": "2026-01-01T09:57:32Z",
        "git_url": f"git://github.com/{name}.git",
        "ssh_url": f"git@github.com:{name}.git",
        "clone_url": f"{_WEB}/{name}.git",
        **dict.fromkeys(_COUNTS, 12),
        **dict.fromkeys(_FACTS, False),
        "default_branch": "main",
    }


def _addresses(url: str, paths: Sequence[str]) -> dict[str, str]:
    names = (path.partition("{")[0].strip("/").replace("/", "_") or "archive" for path in paths)
    return {f"{name}_url": f"{url}/{path}" for name, path in zip(names, paths, strict=True)}
