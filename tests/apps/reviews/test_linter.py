"""The linter as a reviewer: a program of its own, with real git repositories."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from linter import finding
from tests.apps.reviews.linting import LinterRuns
from tests.apps.reviews.repositories import Repository
from tests.apps.reviews.reviewing import HEAD, a_push, a_task, an_attempt
from tests.programs import Bounded
from tests.waiting import eventually
from towpath.apps.reviews.model import Comment, Review, Severity, Verdict
from towpath.apps.reviews.reviewers.command import CommandReviewer

UNUSED = "import os\n"
RUFF = [
    str(Path(sys.executable).parent / "ruff"), "check", "--no-cache", "--isolated", "--quiet",
    "--select=F401", "--output-format=concise",
]  # fmt: skip


class TestAReviewByALinter:
    def test_has_the_findings_in_changed_files(
        self, linting: LinterRuns, repository: Repository
    ) -> None:
        base = repository.commit({"old.py": UNUSED, "ok.py": "a = 1\n"})
        head = repository.commit({"src/new.py": f"b = 2\n{UNUSED}", "ok.py": "a = 2\n"})
        review = linting.review(a_task(head=head, base=base), *RUFF)
        assert review == Review(
            summary="ruff: 1 finding in 1 of 2 changed files.",
            verdict=Verdict.REQUEST_CHANGES,
            comments=(
                Comment(
                    path="src/new.py",
                    line=2,
                    body="F401 `os` imported but unused",
                    severity=Severity.WARNING,
                ),
            ),
        )

    def test_approves_if_there_are_no_findings(
        self, linting: LinterRuns, repository: Repository
    ) -> None:
        base = repository.commit({"old.py": UNUSED})
        head = repository.commit({"new.py": "a = 1\n"})
        review = linting.review(a_task(head=head, base=base), *RUFF)
        assert review.verdict is Verdict.APPROVE
        assert review.summary == "ruff: no findings in 1 changed file."

    def test_approves_a_change_without_files_of_its_kind(
        self, linting: LinterRuns, repository: Repository
    ) -> None:
        base = repository.commit({"old.py": UNUSED})
        head = repository.commit({"README.md": "# Hello\n"})
        review = linting.review(a_task(head=head, base=base), *RUFF)
        assert review == Review(summary="ruff: no changed files to check.", verdict=Verdict.APPROVE)

    def test_has_no_findings_in_other_files(
        self, linting: LinterRuns, repository: Repository
    ) -> None:
        base = repository.commit({"old.py": UNUSED})
        head = repository.commit({"new.py": "a = 1\n"})
        linter = ["sh", "-c", "echo old.py:1:1: bad; echo ../x.py:1:1: worse; exit 1"]
        assert linting.review(a_task(head=head, base=base), *linter).verdict is Verdict.APPROVE

    def test_counts_findings_that_it_has_no_room_for(
        self, linting: LinterRuns, repository: Repository
    ) -> None:
        head = repository.commit({"many.py": UNUSED})
        linter = ["sh", "-c", "yes 'many.py:1:1: E1 again' | head -n 200000; exit 1"]
        review = linting.review(a_push(head=head), *linter)
        assert len(review.comments) == 500
        assert "200000 findings in 1 of 1 changed file; the first 500 follow" in review.summary

    async def test_comes_from_a_command_reviewer(
        self, linting: LinterRuns, repository: Repository
    ) -> None:
        """Configured as for a worker; two reviews at once can share one clone."""
        base = repository.commit({"old.py": UNUSED})
        head = repository.commit({"new.py": UNUSED})
        reviewer = CommandReviewer(linting.command(*RUFF))
        task = a_task(head=head, base=base)
        reviews = await asyncio.gather(*(reviewer.review(task, an_attempt()) for _ in range(2)))
        assert [[comment.path for comment in review.comments] for review in reviews] == [
            ["new.py"]
        ] * 2


class TestTheFilesOfAChange:
    def test_are_those_since_a_pull_request_left_its_target_commit(
        self, linting: LinterRuns, repository: Repository
    ) -> None:
        repository.commit({"old.py": "", "moved.py": "a = 1\n", "gone.py": ""})
        repository.git("checkout", "-q", "-b", "fix")
        repository.git("mv", "moved.py", "there.py")
        repository.commit({"gone.py": None, "first.py": ""})
        head = repository.commit({"second.py": ""})
        repository.git("checkout", "-q", "main")
        base = repository.commit({"elsewhere.py": "", "old.py": "a = 1\n"})
        assert linting.files(a_task(head=head, base=base)) == ["first.py", "second.py", "there.py"]

    def test_are_those_since_it_left_the_branch_if_the_forge_names_no_commit(
        self, linting: LinterRuns, tmp_path: Path
    ) -> None:
        """GitLab only names the target branch of a merge request."""
        origin = Repository(tmp_path / "origin")
        origin.commit({"old.py": ""})
        clone = linting.clones / "octo" / "repo"
        subprocess.run(["git", "clone", "-q", origin.place, clone], check=True)
        origin.git("checkout", "-q", "-b", "fix")
        origin.commit({"first.py": ""})
        head = origin.commit({"second.py": ""})
        subprocess.run(["git", "-C", clone, "fetch", "-q", "origin", "fix"], check=True)
        assert linting.files(a_task(head=head, base=None)) == ["first.py", "second.py"]
        assert linting.files(a_task(head=head, base=None, target="absent")) == ["second.py"]
        assert linting.files(a_task(head=head, base=None, target=None)) == ["second.py"]

    def test_are_those_of_a_whole_push(self, linting: LinterRuns, repository: Repository) -> None:
        before = repository.commit({"old.py": ""})
        repository.commit({"first.py": ""})
        head = repository.commit({"second.py": ""})
        assert linting.files(a_push(head=head, before=before)) == ["first.py", "second.py"]

    def test_are_those_of_the_last_commit_of_a_new_branch(
        self, linting: LinterRuns, repository: Repository
    ) -> None:
        repository.commit({"old.py": ""})
        head = repository.commit({"new.py": ""})
        assert linting.files(a_push(head=head)) == ["new.py"]
        assert linting.files(a_push(head=head, before=HEAD)) == ["new.py"]  # pushed with force

    def test_are_all_in_the_first_commit(self, linting: LinterRuns, repository: Repository) -> None:
        head = repository.commit({"a.py": "", "b/c.py": ""})
        assert linting.files(a_push(head=head)) == ["a.py", "b/c.py"]

    def test_are_those_that_a_merge_brings(
        self, linting: LinterRuns, repository: Repository
    ) -> None:
        repository.commit({"old.py": ""})
        repository.git("checkout", "-q", "-b", "fix")
        repository.commit({"fix.py": ""})
        repository.git("checkout", "-q", "main")
        repository.commit({"other.py": ""})
        repository.git("merge", "-q", "--no-ff", "-m", "Merge", "fix")
        assert linting.files(a_push(head=repository.git("rev-parse", "HEAD"))) == ["fix.py"]

    def test_may_have_any_name(self, linting: LinterRuns, repository: Repository) -> None:
        names = ["$(touch x).py", "--fix.py", "-q.py", "a b.py", "quote'.py", "ü.py"]
        head = repository.commit(dict.fromkeys(names, ""))
        assert linting.files(a_push(head=head)) == sorted(names)
        options = 'for it; do case "$it" in -*) echo "a b.py:1:1: an option";; esac; done'
        review = linting.review(a_push(head=head), "sh", "-c", options, "sh")
        assert review.verdict is Verdict.APPROVE

    def test_are_placed_where_the_command_says(
        self, linting: LinterRuns, repository: Repository
    ) -> None:
        head = repository.commit({"a.py": ""})
        linter = ["sh", "-c", 'echo "$1:1:1: $2"', "sh", "{files}", "last"]
        [comment] = linting.review(a_push(head=head), *linter).comments
        assert (comment.path, comment.body) == ("a.py", "last")

    def test_are_passed_in_portions(self, linting: LinterRuns, repository: Repository) -> None:
        head = repository.commit({f"{number:03}.py": "" for number in range(450)})
        linter = ["sh", "-c", 'echo "$1:1:1: $# at once"', "sh"]
        said = [comment.body for comment in linting.review(a_push(head=head), *linter).comments]
        assert said == ["200 at once", "200 at once", "50 at once"]

    def test_may_be_in_a_bare_clone(self, linting: LinterRuns, tmp_path: Path) -> None:
        head = Repository(tmp_path / "origin").commit({"a.py": ""})
        bare = linting.clones / "group" / "sub" / "repo.git"
        subprocess.run(["git", "clone", "-q", "--bare", tmp_path / "origin", bare], check=True)
        assert linting.files(a_push(head=head, repository="group/sub/repo")) == ["a.py"]


class TestFilesThatAStrangerCommitted:
    def test_cannot_be_links_to_files_of_this_machine(
        self, linting: LinterRuns, repository: Repository, tmp_path: Path
    ) -> None:
        """The linter would read and quote the target of a link, which the stranger may not see."""
        (tmp_path / "secret.py").write_text(UNUSED)
        (repository.place / "leak.py").symlink_to(tmp_path / "secret.py")
        (repository.place / "folder").symlink_to(tmp_path)
        (repository.place / "a.py").write_text("")
        head = repository.commit_all()
        links = ["sh", "-c", 'find . -type l | sed "s/.*/a.py:1:1: a link/"; echo "$@"', "sh"]
        assert linting.review(a_push(head=head), *links).verdict is Verdict.APPROVE
        assert linting.files(a_push(head=head)) == ["a.py"]

    def test_are_not_imported_by_a_linter_in_python(
        self, linting: LinterRuns, repository: Repository, tmp_path: Path
    ) -> None:
        trap = f"import pathlib; pathlib.Path({str(tmp_path / 'touched')!r}).touch()"
        head = repository.commit({"json.py": trap})
        linting.run(a_push(head=head), sys.executable, "-m", "json.tool")
        assert not (tmp_path / "touched").exists()

    def test_start_no_hook(
        self, linting: LinterRuns, repository: Repository, tmp_path: Path
    ) -> None:
        hook = repository.place / ".git" / "hooks" / "post-checkout"
        hook.parent.mkdir(exist_ok=True)
        hook.write_text(f"#!/bin/sh\ntouch {tmp_path}/hooked\n")
        hook.chmod(0o755)
        head = repository.commit({"a.py": ""})
        assert linting.files(a_push(head=head)) == ["a.py"]
        assert not (tmp_path / "hooked").exists()

    @pytest.mark.parametrize("name", ["../repo", "octo/..", "octo/../octo/repo", "/octo/repo"])
    def test_cannot_choose_another_directory(
        self, linting: LinterRuns, repository: Repository, name: str
    ) -> None:
        head = repository.commit({"a.py": ""})
        given = a_push(head=head).packed().replace(b"octo/repo", name.encode())
        assert linting.run(given).code == os.EX_DATAERR

    @pytest.mark.parametrize("head", ["--upload-pack=x", "HEAD", "main", "0" * 40])
    def test_cannot_name_anything_but_a_commit(self, linting: LinterRuns, head: str) -> None:
        given = a_push().packed().replace(HEAD.encode(), head.encode())
        assert linting.run(given).code == os.EX_DATAERR


class TestALinterThatCannotReview:
    def test_reports_that_the_commit_is_missing(
        self, linting: LinterRuns, repository: Repository
    ) -> None:
        head = repository.commit({"a.py": ""})
        for task in (a_task(head=HEAD, base=head), a_task(head=head, base=HEAD)):
            ran = linting.run(task)
            assert ran.code == os.EX_TEMPFAIL
            assert ran.err == f"repo does not have {HEAD[:12]} yet: fetch it\n"

    def test_reports_that_the_clone_is_missing(self, linting: LinterRuns) -> None:
        ran = linting.run(a_task())
        assert ran.code == os.EX_TEMPFAIL
        assert "there is no clone of octo/repo" in ran.err

    @pytest.mark.parametrize("given", [b"", b"{}", b"[]", b"\xff"])
    def test_reports_that_the_task_is_missing(self, linting: LinterRuns, given: bytes) -> None:
        assert linting.run(given).code == os.EX_DATAERR

    def test_does_not_take_a_parent_directory_for_the_clone(
        self, linting: LinterRuns, tmp_path: Path
    ) -> None:
        around = Repository(tmp_path / "clones")
        head = around.commit({"octo/repo/a.py": ""})
        ran = linting.run(a_push(head=head))
        assert ran.code == os.EX_SOFTWARE
        assert "not a git repository" in ran.err

    def test_fetches_nothing(self, linting: LinterRuns, tmp_path: Path) -> None:
        """A partial clone would otherwise fetch missing files from its origin."""
        origin = Repository(tmp_path / "origin")
        origin.git("config", "uploadpack.allowFilter", "true")
        head = origin.commit({"a.py": UNUSED})
        clone = linting.clones / "octo" / "repo"
        source = f"file://{tmp_path}/origin"
        partial = ["git", "clone", "-q", "-n", "--filter=blob:none", source, str(clone)]
        subprocess.run(partial, check=True)
        assert linting.run(a_push(head=head)).code == os.EX_SOFTWARE
        counted = ["git", "-C", clone, "rev-list", "--objects", "--all", "--missing=print"]
        found = subprocess.run(counted, check=True, capture_output=True).stdout
        assert found.count(b"?") == 1

    @pytest.mark.parametrize(
        "linter", [["sh", "-c", "echo broken >&2; exit 1"], ["sh", "-c", "kill -9 $$"]]
    )
    def test_reports_that_the_linter_failed(
        self, linting: LinterRuns, repository: Repository, linter: list[str]
    ) -> None:
        """It checked nothing, so this is no approval."""
        head = repository.commit({"a.py": ""})
        ran = linting.run(a_push(head=head), *linter)
        assert (ran.code, ran.out) == (os.EX_SOFTWARE, "")
        assert "and found nothing" in ran.err

    def test_reports_that_the_linter_does_not_exist(
        self, linting: LinterRuns, repository: Repository
    ) -> None:
        head = repository.commit({"a.py": ""})
        ran = linting.run(a_push(head=head), "towpath-no-such-linter")
        assert ran.code == os.EX_SOFTWARE
        assert "towpath-no-such-linter" in ran.err

    def test_cleans_up_when_it_is_ended(
        self, linting: LinterRuns, repository: Repository, tmp_path: Path
    ) -> None:
        head = repository.commit({"a.py": ""})
        begun = tmp_path / "begun"
        linter = ["sh", "-c", f"touch {begun}; exec sleep 1000"]
        process = Bounded[bytes](
            linting.command(*linter),
            env=linting.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
        with process:
            assert process.stdin is not None
            process.stdin.write(a_push(head=head).packed())
            process.stdin.close()
            eventually(begun.exists)
            assert list(linting.temporary.iterdir())
            os.killpg(process.pid, signal.SIGTERM)
        assert process.returncode == 128 + signal.SIGTERM
        assert list(linting.temporary.iterdir()) == []


@pytest.mark.parametrize(
    ("line", "found"),
    [
        (
            "src/a.py:3:8: F401 [*] `os` imported but unused",
            ("F401 `os` imported but unused", False),
        ),
        ("src/a.py:3:8: F821 Undefined name `x`", ("F821 Undefined name `x`", True)),
        ("src/a.py:3:1: E302 expected 2 blank lines", ("E302 expected 2 blank lines", False)),
        ("src/a.py:3:1: invalid-syntax: Expected `:`", ("invalid-syntax: Expected `:`", True)),
        (
            "src/a.py:3: [E0602(undefined-variable), f] Undefined variable 'x'",
            ("[E0602(undefined-variable), f] Undefined variable 'x'", True),
        ),
        (
            "src/a.py:3:0: C0114: Missing module docstring (missing-module-docstring)",
            ("C0114: Missing module docstring (missing-module-docstring)", False),
        ),
        ("src/a.py:3: error: Name 'x' is not defined", ("error: Name 'x' is not defined", True)),
        (
            "/tree/src/a.py:3:10: 'x' is not defined. [Error/no-undef]",
            ("'x' is not defined. [Error/no-undef]", True),
        ),
        (
            "/tree/src/a.py:3:10: Missing semicolon. [Warning/semi]",
            ("Missing semicolon. [Warning/semi]", False),
        ),
        ("./src/a.py:3: a\x1b[31m hidden\u202e mark", ("a [31m hidden  mark", False)),
    ],
)
def test_output_lines_of_many_linters_are_parsed(line: str, found: tuple[str, bool]) -> None:
    said, grave = found
    understood = finding(line, Path("/tree"))
    assert understood is not None
    comment: Any = understood.comment()
    assert (comment.path, comment.line, comment.body) == ("src/a.py", 3, said)
    assert (comment.severity is Severity.ERROR) is grave


@pytest.mark.parametrize(
    "line",
    ["", "Found 3 errors.", "All checks passed!", "a.py:x: y", "warning: no such rule", "a:1:"],
)
def test_other_lines_are_no_findings(line: str) -> None:
    assert finding(line, Path("/tree")) is None
