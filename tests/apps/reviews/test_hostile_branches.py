"""A branch of any name is reviewed, and its name does no harm where it is shown or used."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.apps.reviews.deliveries import (
    GITHUB_SECRET,
    GITLAB_TOKEN,
    Delivery,
    github_push,
    gitlab_push,
    merge_request,
    pull_request,
    read_github,
    read_gitlab,
)
from tests.apps.reviews.linting import LinterRuns
from tests.apps.reviews.repositories import Repository
from tests.apps.reviews.reviewing import a_task, an_attempt
from towpath.apps.reviews.hooks import Hook
from towpath.apps.reviews.model import Forge, ReviewState
from towpath.apps.reviews.reviewers.command import CommandReviewer
from towpath.apps.reviews.service import Reviews

NAMES = {
    "turning": "fix\u202egnp.exe",
    "an option": "--upload-pack=x",
    "a hyphen": "-x",
    "very long": "/".join(["ü" * 100] * 5),
    "lines": "a\u2028b\x85c",
    "terminal": "a\x9b2Jb",
    "shell": "$(id>x);`id`|'\"<b>&",
    "at": "@",
}


@pytest.fixture(params=NAMES.values(), ids=list(NAMES))
def name(request: pytest.FixtureRequest) -> str:
    return request.param


def read(sent: Delivery) -> Hook:
    known = "X-GitHub-Event" in sent.headers
    reader, secret = (read_github, GITHUB_SECRET) if known else (read_gitlab, GITLAB_TOKEN)
    hook = reader(sent.headers, sent.body, secrets=[secret])
    assert isinstance(hook, Hook)
    return hook


def deliveries(name: str) -> list[Delivery]:
    """All deliveries that can have such a branch."""
    page = f"https://github.com/octo/hello-world/compare/{name}"
    return [
        pull_request({"pull_request.head.ref": name}),
        pull_request({"pull_request.base.ref": name}),
        github_push({"ref": f"refs/heads/{name}", "compare": page}),
        merge_request(
            {"object_attributes.source_branch": name, "object_attributes.target_branch": name}
        ),
        gitlab_push({"ref": f"refs/heads/{name}"}),
    ]


async def test_a_branch_of_any_name_is_reviewed(reviews: Reviews, name: str) -> None:
    for number, sent in enumerate(deliveries(name)):
        hook = read(sent)
        assert name in (hook.task.ref, hook.task.target)
        taken = await reviews.take(Hook(delivery=f"d{number}", task=hook.task, version=number))
        assert taken.state is ReviewState.PENDING
        view = await reviews.get(taken.id)
        assert view.task == hook.task


def test_git_accepts_a_branch_of_any_name(tmp_path: Path, name: str) -> None:
    linting = LinterRuns(tmp_path)
    repository = Repository(linting.clones / "octo" / "repo")
    base = repository.commit({"old.py": ""})
    repository.git("update-ref", f"refs/heads/{name}", base)
    repository.commit({"first.py": ""})
    head = repository.commit({"second.py": ""})
    task = a_task(forge=Forge("gitlab"), head=head, base=None, ref=name, target=name)
    assert linting.files(task) == ["first.py", "second.py"]
    assert not (repository.place / "x").exists()


async def test_a_command_gets_the_whole_name_of_a_branch(name: str) -> None:
    shows = "import os, sys; sys.stdout.write(ascii(os.environ['TOWPATH_REVIEW_REF']))"
    review = await CommandReviewer([sys.executable, "-c", shows]).review(
        a_task(ref=name), an_attempt()
    )
    assert review.summary == ascii(name)
