"""Tasks and reviews: which values are valid, and how they are encoded."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import msgspec
import pytest

from towpath.apps.reviews.errors import ReviewInvalid, TaskInvalid
from towpath.apps.reviews.model import (
    BODY_MOST,
    COMMENTS_MOST,
    REVIEW_MOST,
    SUMMARY_MOST,
    Action,
    Comment,
    Forge,
    Review,
    ReviewKind,
    ReviewState,
    ReviewTask,
    Severity,
    Verdict,
    priority_of,
    read_review,
    subject_of,
)
from towpath.engine.model import HIGH, NORMAL
from towpath.forges.texts import is_plain
from towpath.ids import job_id
from towpath.ledger.records.record import RecordState

HEAD = "a" * 40


def task(**fields: Any) -> ReviewTask:
    known: dict[str, Any] = {
        "forge": Forge.API,
        "kind": ReviewKind.PULL,
        "repository": "octo/repo",
        "number": 7,
        "head": HEAD,
    }
    return ReviewTask(**(known | fields))


def push(**fields: Any) -> ReviewTask:
    return task(**({"kind": ReviewKind.PUSH, "number": None, "ref": "main"} | fields))


class TestATask:
    def test_survives_encoding_and_decoding(self) -> None:
        for made in (task(title="日本語", base="b" * 64, target="main"), push(before=HEAD)):
            assert ReviewTask.unpacked(made.packed()) == made

    def test_is_written_with_all_its_fields(self) -> None:
        """Reviewers in other languages read it."""
        assert set(json.loads(task().packed())) == set(ReviewTask.__struct_fields__)

    def test_that_was_requested_says_so(self) -> None:
        assert task().action == Action.REQUESTED

    def test_is_about_a_pull_request_or_a_branch(self) -> None:
        assert subject_of(task()) == "api:octo/repo#7"
        assert subject_of(push(forge=Forge("gitlab"), repository="a/b/c")) == "gitlab:a/b/c@main"

    def test_has_a_higher_priority_for_a_pull_request(self) -> None:
        assert (priority_of(task()), priority_of(push())) == (HIGH, NORMAL)

    def test_has_a_subject_that_a_record_may_have(self) -> None:
        for ref in ("ü" * 122, "ü" * 2048, "a\u202eb", "a\x9bb", "\u2028" * 300):
            longest = push(forge=Forge("gitlab"), repository="a/" + "b" * 253, ref=ref)
            assert job_id(subject_of(longest))

    def test_has_a_subject_of_its_own_whatever_its_branch_is_called(self) -> None:
        names = ["fix", "f\u202eix", "f\u202dix", "fi\u2028x", "x" * 300, "x" * 301, "x" * 244]
        subjects = {subject_of(push(ref=ref)) for ref in names}
        assert len(subjects) == len(names)
        assert all(is_plain(subject) for subject in subjects)

    @pytest.mark.parametrize(
        "repository",
        ["octo/repo", "octo/.github", "octo/a.b_c-d", "1/2", "_a/b", "a/b/c/d"],
    )
    def test_may_be_in_any_repository(self, repository: str) -> None:
        assert task(repository=repository).repository == repository

    @pytest.mark.parametrize(
        "repository",
        ["", "octo", "/repo", "octo/", "octo//repo", "../repo", "octo/..", "octo/.", "-o/repo",
         "octo/-r", "octo/repo.git", "octo/.GIT", "x.git/repo", "octo/re po", "octo/répo",
         "octo/repo\n", "octo/r#1", "octo/r@x", "C:\\octo/repo", "o/" + "x" * 254],
    )  # fmt: skip
    def test_in_an_invalid_repository_is_refused(self, repository: str) -> None:
        refuse("repository", task, repository=repository)

    BRANCHES = (
        "main", "feature/#1", "fix(a)", "日本", "a@b", "x" * 250, "/".join(["y" * 200] * 15), "a-b",
        "$HOME;id", "-x", "--upload-pack=x", "a\u202eb", "a\u2028b", "a\x9bb", "@", "a/-b", "`id`",
        "'", '"', "<b>", "%41", "HEAD",
    )  # fmt: skip
    NO_BRANCHES = (
        "", "/a", "a/", "a//b", ".a", "a/.b", "a.", "a..b", "a.lock", "a.lock/b", "a b", "a~1",
        "a^", "a:b", "a?", "a*", "a[", "a\\b", "a@{1}", "a\nb", "a\x7f", "a\x1bb",
    )  # fmt: skip

    @pytest.mark.parametrize("ref", BRANCHES)
    def test_may_be_on_any_branch_that_git_allows(self, ref: str) -> None:
        assert push(ref=ref).ref == ref

    @pytest.mark.parametrize("ref", [*NO_BRANCHES, "a\0", "\ud800", "ü" * 2049])
    def test_on_an_invalid_branch_is_refused(self, ref: str) -> None:
        refuse("ref", push, ref=ref)

    def test_accepts_the_same_branches_as_git(self) -> None:
        def allows(ref: str) -> bool:
            asked = ["git", "check-ref-format", f"refs/heads/{ref}"]
            return subprocess.run(asked, check=False).returncode == 0

        assert [name for name in self.BRANCHES if not allows(name)] == []
        assert [name for name in self.NO_BRANCHES if allows(name)] == []

    @pytest.mark.parametrize(
        "sha", ["", "main", "a" * 39, "a" * 41, "A" * 40, "g" * 40, "0" * 40, "0" * 64, HEAD + "\n"]
    )
    def test_needs_a_complete_commit_id(self, sha: str) -> None:
        for field in ("head", "base", "before"):
            refuse(field, task, **{field: sha})

    @pytest.mark.parametrize(
        "url",
        [
            "http://a",
            "https://a.b:8443/c?d=e#f",
            "https://[::1]:3000/x",
            "https://a/compare/b^...c",
        ],
    )
    def test_may_have_any_web_address(self, url: str) -> None:
        assert task(url=url, clone_url=url, host=url).url == url

    @pytest.mark.parametrize(
        "url",
        ["ssh://a/b", "git@a:b", "--x", "javascript:1", "https://", "https://u:p@a/b",
         "https://u@a", "https://a b", "https://a/\n", 'https://a/"', "https://a/<b>",
         "https://a\\b", "https://a/" + "x" * 2000, "HTTPS://a"],
    )  # fmt: skip
    def test_with_an_invalid_address_or_a_password_in_it_is_refused(self, url: str) -> None:
        for field in ("url", "clone_url", "host"):
            refuse(field, task, **{field: url})

    @pytest.mark.parametrize("number", [None, 0, -1, 2**31, 10**30])
    def test_of_a_pull_request_needs_its_number(self, number: int | None) -> None:
        refuse("number", task, number=number)

    def test_of_a_push_has_no_number(self) -> None:
        refuse("number", push, number=7)

    def test_has_texts_of_one_line_each(self) -> None:
        made = task(title=" a\nb\0" + "x" * 600, author="\u202eevil\ud800")
        assert made.title == "a b " + "x" * 495
        assert made.author == "evil"
        made.packed()

    @pytest.mark.parametrize(
        ("data", "field"),
        [
            (b"", "task"),
            (b"[]", "task"),
            (b"{}", "task"),
            (b"\xff", "task"),
            (b"[" * 9999, "task"),
            (task().packed().replace(b'"number":7', b'"number":"7"'), "number"),
            (task().packed().replace(b'"number":7', b'"number":0'), "number"),
            (task().packed().replace(b"octo/repo", b"../repo"), "repository"),
            (task().packed().replace(b'"api"', b'"elsewhere"'), "forge"),
            (task().packed().replace(b'"title":""', b'"title":"\xff"'), "task"),
        ],
    )
    def test_that_is_corrupt_is_refused(self, data: bytes, field: str) -> None:
        with pytest.raises(TaskInvalid) as refusal:
            ReviewTask.unpacked(data)
        assert refusal.value.field == field


def refuse(field: str, make: Any, **fields: Any) -> None:
    with pytest.raises(TaskInvalid) as refusal:
        make(**fields)
    assert refusal.value.field == field
    assert refusal.value.rule in str(refusal.value)


class TestAReview:
    WHOLE = Review(
        summary="Fine.",
        verdict=Verdict.APPROVE,
        comments=(Comment(path="src/a.py", line=3, body="why?", severity=Severity.WARNING),),
    )

    def test_survives_encoding_and_decoding(self) -> None:
        assert Review.unpacked(self.WHOLE.packed()) == self.WHOLE
        assert read_review(self.WHOLE.packed()) == self.WHOLE

    def test_is_written_with_all_its_fields(self) -> None:
        assert json.loads(Review(summary="x").packed()) == {
            "summary": "x",
            "verdict": "comment",
            "comments": [],
        }

    def test_may_be_plain_text(self) -> None:
        said = "\n  3 findings\n\n\ta.py: ü\r\n\x1b[31mred\0\xff\n".encode("latin-1")
        assert read_review(said) == Review(summary="  3 findings\n\n\ta.py: �\n[31mred�")

    def test_in_json_may_have_unknown_fields(self) -> None:
        data = b' {"summary":"x","by":{},"comments":[{"path":"a","body":"b","rule":"E1"}]}'
        assert read_review(data).comments == (Comment(path="a", body="b"),)

    def test_that_is_too_long_as_text_is_truncated_and_says_so(self) -> None:
        review = read_review(b"x" * 100_000)
        assert len(review.summary) == SUMMARY_MOST
        assert review.summary.endswith("was cut here)")

    def test_shows_invisible_characters_in_its_texts(self) -> None:
        review = Review(summary="a\0\u202e\ud800b\n", comments=(Comment(path="x", body="\x1bc"),))
        assert (review.summary, review.comments[0].body) == ("ab", "c")
        assert Review.unpacked(review.packed()) == review

    @pytest.mark.parametrize(
        ("value", "field"),
        [
            ({}, "review"),
            ({"summary": ""}, "summary"),
            ({"summary": " \n"}, "summary"),
            ({"summary": 1}, "summary"),
            ({"summary": "x" * (SUMMARY_MOST + 1)}, "summary"),
            ({"summary": "x", "verdict": "lgtm"}, "verdict"),
            ({"summary": "x", "verdict": "y" * 1000}, "verdict"),
            ({"summary": "x", "comments": {}}, "comments"),
        ],
    )
    def test_that_is_invalid_is_refused_with_the_name_of_the_field(
        self, value: Any, field: str
    ) -> None:
        self.refuse(value, field)

    @pytest.mark.parametrize(
        ("changes", "field"),
        [
            ({"body": None}, "body"),
            ({"body": ""}, "body"),
            ({"body": "b" * (BODY_MOST + 1)}, "body"),
            ({"line": 0}, "line"),
            ({"line": 10**20}, "line"),
            ({"line": "1"}, "line"),
            ({"severity": 1}, "severity"),
            ({"path": "../a"}, "path"),
        ],
    )
    def test_names_the_comment_that_is_wrong(self, changes: dict[str, Any], field: str) -> None:
        good = {"path": "a", "body": "b"}
        self.refuse({"summary": "x", "comments": [good, good | changes]}, f"comments[1].{field}")

    def test_has_a_limited_number_of_comments(self) -> None:
        comments = [{"path": "a", "body": "b"}] * (COMMENTS_MOST + 1)
        self.refuse({"summary": "x", "comments": comments}, "comments")

    def refuse(self, value: Any, field: str) -> None:
        with pytest.raises(ReviewInvalid) as refusal:
            read_review(msgspec.json.encode(value))
        assert refusal.value.field == field
        assert len(str(refusal.value)) < 300

    @pytest.mark.parametrize(
        "output", [b"", b" \n\t", b"\0", b"{", b"{not json", b'{"summary":"x"', b"{\xff"]
    )
    def test_that_is_empty_or_truncated_json_is_refused(self, output: bytes) -> None:
        with pytest.raises(ReviewInvalid):
            read_review(output)

    def test_nested_too_deep_is_refused(self) -> None:
        with pytest.raises(ReviewInvalid) as refusal:
            read_review(b'{"summary":"x","y":' + b"[" * 100_000)
        assert refusal.value.field == "review"
        assert isinstance(refusal.value.__context__, RecursionError)

    def test_of_too_many_bytes_is_refused(self) -> None:
        with pytest.raises(ReviewInvalid, match=str(REVIEW_MOST)):
            read_review(b"x" * (REVIEW_MOST + 1))
        comments = (Comment(path="a", body="x" * BODY_MOST),) * 200
        with pytest.raises(ReviewInvalid, match=str(REVIEW_MOST)):
            Review(summary="x", comments=comments).packed()

    @pytest.mark.parametrize(
        "path", ["a", "src/a b.py", ".github/x.yml", "a..b", "日本.py", "x" * 1024]
    )
    def test_may_comment_on_any_file(self, path: str) -> None:
        assert Comment(path=path, body="b").path == path

    @pytest.mark.parametrize(
        "path",
        [
            "",
            "/etc/passwd",
            "../a",
            "a/../b",
            "a/..",
            "./a",
            "a/.",
            "a//b",
            "a/",
            ".",
            "..",
            "a\nb",
            "a\0",
            "x" * 1025,
        ],
    )
    def test_never_comments_on_files_outside_of_the_repository(self, path: str) -> None:
        with pytest.raises(ReviewInvalid) as refusal:
            Comment(path=path, body="b")
        assert refusal.value.field == "path"


def test_every_state_of_a_record_is_shown_in_capitals() -> None:
    shown = {ReviewState.of(state) for state in RecordState}
    assert shown == set(ReviewState)
    assert ReviewState.of("pending") == "PENDING"
