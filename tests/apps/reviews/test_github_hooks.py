"""A2, S3, I19: how GitHub's webhooks are read, and which are refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.apps.reviews.deliveries import (
    GITHUB_DELIVERY,
    GITHUB_SECRET,
    GONE,
    Delivery,
    github,
    github_form,
    github_push,
    hub_signature,
    packed,
    payload,
    pull_request,
)
from tests.apps.reviews.deliveries import read_github as read
from towpath.apps.reviews.hooks import Hook
from towpath.apps.reviews.model import Action, Forge, ReviewKind, ReviewTask
from towpath.calls.errors import SignatureRefused
from towpath.engine.model import HIGH, NORMAL
from towpath.errors import InvalidOption
from towpath.forges.errors import SignatureInvalid, WebhookInvalid
from towpath.forges.facts import Ignored

TEN_O_CLOCK = 1_767_261_600_000
NO_COMMIT = "0" * 40
OTHER = "another secret"
FORM = "application/x-www-form-urlencoded"


def taken(sent: Delivery) -> Hook:
    hook = read(sent.headers, sent.body, secrets=[GITHUB_SECRET])
    assert isinstance(hook, Hook)
    return hook


def ignored(sent: Delivery) -> str:
    answer = read(sent.headers, sent.body, secrets=[GITHUB_SECRET])
    assert isinstance(answer, Ignored)
    return answer.reason


def refused(sent: Delivery) -> WebhookInvalid:
    with pytest.raises(WebhookInvalid) as refusal:
        read(sent.headers, sent.body, secrets=[GITHUB_SECRET])
    return refusal.value


class TestAPullRequest:
    def test_becomes_a_task_of_high_priority(self) -> None:
        hook = taken(pull_request())
        assert hook.priority == HIGH
        assert hook.subject == "github:octo/hello-world#7"
        assert hook.version == TEN_O_CLOCK
        assert hook.delivery == GITHUB_DELIVERY
        assert hook.id == f"github-{GITHUB_DELIVERY}"
        assert hook.task == ReviewTask(
            forge=Forge("github"),
            kind=ReviewKind.PULL,
            action=Action.OPENED,
            repository="octo/hello-world",
            number=7,
            head="ec26c3e57ca3a959ca5aad62de7213c562f8c821",
            ref="changes",
            base="f95f852bd8fca8fcc58a9a2d6c842781e32a215e",
            target="main",
            title="Update the README with new information.",
            author="monalisa",
            url="https://github.com/octo/hello-world/pull/7",
            clone_url="https://github.com/octo/hello-world.git",
            host="https://github.com",
        )

    @pytest.mark.parametrize(
        ("said", "action"),
        [
            ("opened", Action.OPENED),
            ("reopened", Action.REOPENED),
            ("synchronize", Action.UPDATED),
            ("ready_for_review", Action.READY),
        ],
    )
    def test_is_reviewed_when_it_has_new_content(self, said: str, action: Action) -> None:
        assert taken(pull_request(action=said)).task.action == action

    def test_with_new_commits_names_the_commit_before(self) -> None:
        before = "b" * 40
        sent = pull_request({"before": before, "after": "c" * 40}, action="synchronize")
        assert taken(sent).task.before == before

    @pytest.mark.parametrize(
        "said", ["closed", "labeled", "edited", "converted_to_draft", "assigned", "x" * 500]
    )
    def test_is_ignored_when_it_has_no_new_content(self, said: str) -> None:
        assert ignored(pull_request(action=said)) == f"pull_request {said[:64]}"

    @pytest.mark.parametrize("said", ["opened", "reopened", "synchronize"])
    def test_is_ignored_while_it_is_a_draft(self, said: str) -> None:
        """GitHub announces it again, as ready_for_review, when it is no longer a draft."""
        assert "draft" in ignored(pull_request({"pull_request.draft": True}, action=said))

    def test_is_ignored_once_it_is_closed(self) -> None:
        assert "closed" in ignored(pull_request({"pull_request.state": "closed"}))

    def test_of_a_deleted_user_has_no_author(self) -> None:
        assert taken(pull_request({"pull_request.user": None})).task.author == ""

    def test_of_an_enterprise_server_has_its_address(self) -> None:
        changed = payload("github_pull_request")
        text = packed(changed).replace(b"https://github.com/", b"https://git.example.com:8443/")
        assert taken(github("pull_request", text)).task.host == "https://git.example.com:8443"

    def test_shows_the_title_of_a_stranger_as_one_line(self) -> None:
        title = "Über\x1b[2J\u202e 日本語 🎉\r\nX-Header: 1\0" + "x" * 600
        shown = taken(pull_request({"pull_request.title": title})).task.title
        assert shown.startswith("Über [2J  日本語 🎉  X-Header: 1 xxx")
        assert len(shown) == 500

    def test_that_arrives_late_has_the_lower_version(self) -> None:
        """GitHub's clock decides which event is the latest, not the order of arrival."""
        newer = taken(pull_request({"pull_request.updated_at": "2026-01-01T10:00:01Z"}))
        assert (newer.version or 0) - (taken(pull_request()).version or 0) == 1000


class TestAPush:
    def test_becomes_a_task_of_normal_priority(self) -> None:
        hook = taken(github_push())
        assert hook.priority == NORMAL
        assert hook.subject == "github:octo/hello-world@main"
        assert hook.version == TEN_O_CLOCK
        assert hook.task == ReviewTask(
            forge=Forge("github"),
            kind=ReviewKind.PUSH,
            action=Action.PUSHED,
            repository="octo/hello-world",
            head="be42068a54defbbb573bb5738df5ff4a12f62181",
            ref="main",
            before="f95f852bd8fca8fcc58a9a2d6c842781e32a215e",
            title="Say hello",
            author="monalisa",
            url="https://github.com/octo/hello-world/compare/f95f852bd8fc...be42068a54de",
            clone_url="https://github.com/octo/hello-world.git",
            host="https://github.com",
        )

    def test_of_a_new_branch_has_no_commit_before(self) -> None:
        new = {"before": NO_COMMIT, "created": True, "ref": "refs/heads/fix/#12-ü(x)"}
        hook = taken(github_push(new))
        assert hook.task.before is None
        assert hook.subject == "github:octo/hello-world@fix/#12-ü(x)"

    def test_without_githubs_time_has_no_time(self) -> None:
        """The author chooses the time of the head commit."""
        assert taken(github_push({"repository.pushed_at": GONE})).version is None

    @pytest.mark.parametrize(
        ("changes", "reason"),
        [
            ({"after": NO_COMMIT, "deleted": True, "head_commit": None}, "deleted"),
            ({"ref": "refs/tags/v1.0.0"}, "than a branch"),
            ({"ref": "refs/tags/v1.0.0", "after": NO_COMMIT, "deleted": True}, "than a branch"),
            ({"ref": "refs/notes/commits"}, "than a branch"),
        ],
    )
    def test_without_anything_to_review_is_ignored(
        self, changes: dict[str, Any], reason: str
    ) -> None:
        assert reason in ignored(github_push(changes))


class TestAnyOtherEvent:
    def test_is_ignored(self) -> None:
        assert ignored(github("ping", payload("github_ping"))) == "ping"
        assert ignored(github("issues", {"action": "opened"})) == "issues"

    def test_is_not_even_read(self) -> None:
        assert ignored(github("workflow_run", b"\xff{")) == "workflow_run"


class TestAForm:
    def test_is_read_like_json(self) -> None:
        sent = github_form(
            "pull_request", payload("github_pull_request", {"pull_request.title": "a+b ü &="})
        )
        assert taken(sent).task.title == "a+b ü &="

    @pytest.mark.parametrize(
        "body",
        [
            b"",
            b"payload",
            b"other=1",
            b"payload=%ff",
            b"\xff=1",
            b"&".join([b"a=1"] * 99),
        ],
    )
    def test_without_a_payload_is_refused(self, body: bytes) -> None:
        sent = github("push", body)
        form = {"Content-Type": f"{FORM}; charset=utf-8"}
        assert refused(Delivery(sent.headers | form, body)).field in ("body", "payload")

    def test_with_two_payloads_is_refused(self) -> None:
        """Nobody knows which one was meant."""
        once = github_form("push", payload("github_push"))
        twice = once.body + b"&" + once.body
        sent = github("push", twice)
        assert refused(Delivery(sent.headers | {"Content-Type": FORM}, twice)).field == "payload"


class TestASignature:
    def test_is_accepted_with_any_of_the_secrets(self) -> None:
        """During a rotation two secrets are valid."""
        sent = pull_request()
        assert isinstance(read(sent.headers, sent.body, secrets=["next", GITHUB_SECRET]), Hook)
        assert isinstance(read(sent.headers, sent.body, secrets=[GITHUB_SECRET, "next"]), Hook)

    def test_is_found_whatever_the_case_of_the_header(self) -> None:
        sent = pull_request()
        shouted = {name.upper(): value for name, value in sent.headers.items()}
        assert isinstance(read(shouted, sent.body, secrets=[GITHUB_SECRET]), Hook)

    def test_with_another_secret_is_refused(self) -> None:
        assert self.refusal(github("pull_request", payload("github_pull_request"), secret=OTHER))

    def test_does_not_fit_the_same_json_in_other_bytes(self) -> None:
        sent = pull_request()
        other = json.dumps(json.loads(sent.body), indent=1).encode()
        assert json.loads(other) == json.loads(sent.body)
        assert self.refusal(Delivery(sent.headers, other))

    def test_does_not_fit_a_body_with_one_bit_changed(self) -> None:
        sent = pull_request()
        assert self.refusal(Delivery(sent.headers, sent.body.replace(b"opened", b"openee")))

    @pytest.mark.parametrize(
        "signature",
        [
            "",
            "sha256=",
            "sha1=" + "0" * 40,
            "sha256=" + "0" * 64,
            "sha256=" + "ü" * 64,
            hub_signature(GITHUB_SECRET, b"another body"),
        ],
        ids=["empty", "no digest", "sha1", "zeros", "no hex", "of another body"],
    )
    def test_that_is_malformed_is_refused(self, signature: str) -> None:
        sent = pull_request()
        assert self.refusal(Delivery(sent.headers | {"X-Hub-Signature-256": signature}, sent.body))

    def test_is_required_for_every_event(self) -> None:
        sent = github("ping", payload("github_ping"))
        del sent.headers["X-Hub-Signature-256"]
        assert self.refusal(sent)

    @pytest.mark.parametrize("kind", ["application/json", FORM])
    def test_is_checked_before_anything_is_read(self, kind: str) -> None:
        """The sender of a forged message learns nothing about other faults in it."""
        forged = github("", b"\xff no JSON, no form", secret=OTHER, delivery="")
        headers = forged.headers | {"Content-Type": kind}
        assert self.refusal(Delivery(headers, forged.body))

    def test_in_the_old_header_does_not_count(self) -> None:
        sent = pull_request()
        sent.headers["X-Hub-Signature"] = sent.headers.pop("X-Hub-Signature-256")
        assert self.refusal(sent)

    def test_is_not_repeated_in_the_refusal(self) -> None:
        sent = github("pull_request", payload("github_pull_request"), secret=OTHER)
        text = self.refusal(sent)
        assert sent.headers["X-Hub-Signature-256"] not in text
        assert GITHUB_SECRET not in text

    @pytest.mark.parametrize("secrets", [[], [""], ["good", ""], [" "], "a string"])
    def test_is_never_accepted_without_a_secret(self, secrets: list[str]) -> None:
        sent = github("pull_request", payload("github_pull_request"), secret="")
        with pytest.raises(InvalidOption) as refused:
            read(sent.headers, sent.body, secrets=secrets)
        assert refused.value.option == "secrets"

    def refusal(self, sent: Delivery) -> str:
        with pytest.raises(SignatureInvalid) as refusal:
            read(sent.headers, sent.body, secrets=[GITHUB_SECRET])
        assert isinstance(refusal.value, SignatureRefused)
        assert refusal.value.header == "X-Hub-Signature-256"
        return str(refusal.value)


class TestADelivery:
    def test_that_is_received_twice_has_the_same_id(self) -> None:
        assert taken(pull_request()) == taken(pull_request())

    @pytest.mark.parametrize("id", ["", "a b", "x" * 200, "../../etc", "ü", "a\nb"])
    def test_needs_an_id(self, id: str) -> None:
        assert (
            refused(github("push", payload("github_push"), delivery=id)).field
            == "X-GitHub-Delivery"
        )

    @pytest.mark.parametrize("event", ["", "a/b", "x" * 200, "push\n"])
    def test_needs_an_event(self, event: str) -> None:
        assert refused(github(event, payload("github_push"))).field == "X-GitHub-Event"


class TestAMessageThatIsNotWhatGitHubDocuments:
    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("pull_request.number", 0),
            ("pull_request.number", 10**30),
            ("pull_request.head.sha", "main"),
            ("pull_request.head.sha", NO_COMMIT),
            ("pull_request.head.sha", "EC26C3E57CA3A959CA5AAD62DE7213C562F8C821"),
            ("pull_request.base.sha", "f95f852"),
            ("pull_request.head.ref", "a..b"),
            ("pull_request.base.ref", "main~1 x"),
            ("repository.full_name", "octo"),
            ("repository.full_name", "octo/../etc"),
            ("repository.full_name", "octo/hello;id"),
            ("repository.clone_url", "ext::sh -c id"),
            ("repository.clone_url", "https://user:pass@github.com/octo/hello-world.git"),
            ("repository.html_url", "https://github.com/somebody/else"),
            ("pull_request.html_url", "javascript:alert(1)"),
            ("pull_request.updated_at", "yesterday"),
            ("pull_request.updated_at", "2026-01-01T10:00:00"),
            ("pull_request.updated_at", "2026-13-41T10:00:00Z"),
            ("pull_request.updated_at", "1969-12-31T23:59:59Z"),
            ("before", "0xdeadbeef"),
        ],
    )
    def test_is_refused_with_the_fields_name(self, field: str, value: Any) -> None:
        changes = {field: value}
        if field == "repository.full_name":
            changes["repository.html_url"] = f"https://github.com/{value}"
        error = refused(pull_request(changes, action="synchronize"))
        assert error.field == field
        assert str(value) not in str(error) or value == 0

    @pytest.mark.parametrize(
        ("field", "value", "named"),
        [
            ("pull_request", GONE, "body"),
            ("pull_request", [], "pull_request"),
            ("pull_request.number", "7", "pull_request.number"),
            ("pull_request.number", 7.5, "pull_request.number"),
            ("pull_request.title", None, "pull_request.title"),
            ("pull_request.draft", "no", "pull_request.draft"),
            ("pull_request.head.sha", GONE, "pull_request.head"),
            ("repository.full_name", 1, "repository.full_name"),
            ("action", 1, "action"),
            ("action", GONE, "body"),
        ],
    )
    def test_is_refused_for_a_wrong_type(self, field: str, value: Any, named: str) -> None:
        changed = payload("github_pull_request", {field: value})
        assert refused(github("pull_request", changed)).field == named

    @pytest.mark.parametrize("seconds", [-1, 10**12, 10**40])
    def test_is_refused_for_an_impossible_time_of_a_push(self, seconds: int) -> None:
        assert (
            refused(github_push({"repository.pushed_at": seconds})).field == "repository.pushed_at"
        )

    @pytest.mark.parametrize(
        "body",
        [
            b"",
            b"{",
            b"null",
            b"[]",
            b'"text"',
            b"\xff\xfe",
            b"{}x",
            b'{"action":1e999}',
            b'{"action":"\\ud800"}',
        ],
    )
    def test_is_refused_when_it_is_no_such_json(self, body: bytes) -> None:
        assert refused(github("pull_request", body)).field in ("body", "action")

    def test_is_refused_when_it_is_nested_too_deep(self) -> None:
        deep = b'{"action":"opened","x":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
        error = refused(github("pull_request", deep))
        assert error.field == "body"
        assert isinstance(error.__context__, RecursionError)
