"""A2, S3, I19: how GitLab's webhooks are read, and which are refused."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.apps.reviews.deliveries import (
    GITLAB_DELIVERY,
    GITLAB_SIGNING_TOKEN,
    GITLAB_TOKEN,
    GONE,
    Delivery,
    gitlab,
    gitlab_push,
    merge_request,
    payload,
    signed,
)
from tests.apps.reviews.deliveries import read_gitlab as read
from towpath.apps.reviews.hooks import Hook
from towpath.apps.reviews.model import Action, Forge, ReviewKind, ReviewTask
from towpath.calls.errors import SignatureMissing, SignatureRefused, SignatureStale, SignatureWrong
from towpath.calls.signature import new_secret
from towpath.clock import minutes
from towpath.engine.model import HIGH, NORMAL
from towpath.errors import InvalidOption
from towpath.forges import gitlab as webhooks
from towpath.forges.errors import SignatureInvalid, WebhookInvalid
from towpath.forges.facts import Ignored

TEN_O_CLOCK = 1_767_261_600_000
NO_COMMIT = "0" * 40
LEFT_DRAFT = {"draft": {"previous": True, "current": False}}
OLD_HEAD = "b" * 40


def taken(sent: Delivery) -> Hook:
    hook = read(sent.headers, sent.body, secrets=[GITLAB_TOKEN])
    assert isinstance(hook, Hook)
    return hook


def ignored(sent: Delivery) -> str:
    answer = read(sent.headers, sent.body, secrets=[GITLAB_TOKEN])
    assert isinstance(answer, Ignored)
    return answer.reason


def refused(sent: Delivery) -> WebhookInvalid:
    with pytest.raises(WebhookInvalid) as refusal:
        read(sent.headers, sent.body, secrets=[GITLAB_TOKEN])
    return refusal.value


class TestAMergeRequest:
    def test_becomes_a_task_of_high_priority(self) -> None:
        hook = taken(merge_request())
        assert hook.priority == HIGH
        assert hook.subject == "gitlab:tools/backend/gitlab-test#12"
        assert hook.version == TEN_O_CLOCK
        assert hook.id == f"gitlab-{GITLAB_DELIVERY}"
        assert hook.task == ReviewTask(
            forge=Forge("gitlab"),
            kind=ReviewKind.PULL,
            action=Action.OPENED,
            repository="tools/backend/gitlab-test",
            number=12,
            head="da1560886d4f094c3e6c9ef40349f7d38b5d27d7",
            ref="ms-viewport",
            target="main",
            title="MS-Viewport",
            author="root",
            url="https://gitlab.example.com/tools/backend/gitlab-test/-/merge_requests/12",
            clone_url="https://gitlab.example.com/tools/backend/gitlab-test.git",
            host="https://gitlab.example.com",
        )

    @pytest.mark.parametrize(
        ("said", "changes", "action"),
        [
            ("open", {}, Action.OPENED),
            ("reopen", {}, Action.REOPENED),
            ("update", {"object_attributes.oldrev": OLD_HEAD}, Action.UPDATED),
            ("update", {"changes": LEFT_DRAFT}, Action.READY),
        ],
    )
    def test_is_reviewed_when_it_has_new_content(
        self, said: str, changes: dict[str, Any], action: Action
    ) -> None:
        task = taken(merge_request(changes, action=said)).task
        assert task.action == action
        assert task.before == changes.get("object_attributes.oldrev")

    @pytest.mark.parametrize(
        "said", ["update", "close", "merge", "approved", "approval", "unapproval", None]
    )
    def test_is_ignored_when_it_has_no_new_content(self, said: Any) -> None:
        assert "no new commits" in ignored(merge_request(action=said))

    def test_that_becomes_a_draft_is_ignored(self) -> None:
        became = {"draft": {"previous": False, "current": True}}
        changes = {"changes": became, "object_attributes.draft": True}
        assert "no new commits" in ignored(merge_request(changes, action="update"))

    @pytest.mark.parametrize("flag", ["draft", "work_in_progress"])
    @pytest.mark.parametrize("said", ["open", "reopen", "update"])
    def test_is_ignored_while_it_is_a_draft(self, said: str, flag: str) -> None:
        draft = {f"object_attributes.{flag}": True, "object_attributes.oldrev": OLD_HEAD}
        assert "draft" in ignored(merge_request(draft, action=said))

    @pytest.mark.parametrize("state", ["closed", "merged", "locked"])
    def test_is_ignored_once_it_is_closed(self, state: str) -> None:
        assert "closed" in ignored(merge_request({"object_attributes.state": state}))

    def test_without_commits_is_ignored(self) -> None:
        assert "no commits" in ignored(merge_request({"object_attributes.last_commit": None}))

    @pytest.mark.parametrize(
        ("text", "ms"),
        [
            ("2026-01-01T10:00:00Z", TEN_O_CLOCK),
            ("2026-01-01T10:00:00.211Z", TEN_O_CLOCK + 211),
            ("2026-01-01T12:00:00+02:00", TEN_O_CLOCK),
            ("2026-01-01 10:00:00 UTC", TEN_O_CLOCK),
            ("2026-01-01 12:00:00 +0200", TEN_O_CLOCK),
        ],
    )
    def test_has_its_version_in_either_of_gitlabs_formats(self, text: str, ms: int) -> None:
        assert taken(merge_request({"object_attributes.updated_at": text})).version == ms

    def test_of_a_gitlab_below_a_path_has_its_address(self) -> None:
        """An instance may be installed with a relative URL."""
        changed = payload("gitlab_merge_request")
        text = json.dumps(changed).replace("gitlab.example.com/", "example.com/gitlab/").encode()
        assert taken(gitlab("Merge Request Hook", text)).task.host == "https://example.com/gitlab"


class TestAPush:
    def test_becomes_a_task_of_normal_priority(self) -> None:
        hook = taken(gitlab_push())
        assert hook.priority == NORMAL
        assert hook.subject == "gitlab:mike/diaspora@main"
        # GitLab does not send the time; the author chooses that of a commit
        assert hook.version is None
        assert hook.task == ReviewTask(
            forge=Forge("gitlab"),
            kind=ReviewKind.PUSH,
            action=Action.PUSHED,
            repository="mike/diaspora",
            head="da1560886d4f094c3e6c9ef40349f7d38b5d27d7",
            ref="main",
            before="95790bf891e76fee5e1747ab589903a6a1f80f22",
            title="fixed readme",
            author="jsmith",
            url="https://gitlab.example.com/mike/diaspora/-/commit/"
            "da1560886d4f094c3e6c9ef40349f7d38b5d27d7",
            clone_url="https://gitlab.example.com/mike/diaspora.git",
            host="https://gitlab.example.com",
        )

    @pytest.mark.parametrize(
        ("changes", "reason"),
        [
            ({"after": NO_COMMIT, "checkout_sha": None, "commits": []}, "deleted"),
            ({"ref": "refs/tags/v1.0.0"}, "other than a branch"),
        ],
    )
    def test_without_anything_to_review_is_ignored(
        self, changes: dict[str, Any], reason: str
    ) -> None:
        assert reason in ignored(gitlab_push(changes))


@pytest.mark.parametrize("event", ["Tag Push Hook", "Note Hook", "Pipeline Hook", "System Hook"])
def test_any_other_event_is_ignored_unread(event: str) -> None:
    assert ignored(gitlab(event, b"\xff{")) == event


class TestASecretToken:
    def test_is_accepted_if_it_is_any_of_the_secrets(self) -> None:
        sent = merge_request()
        assert isinstance(read(sent.headers, sent.body, secrets=["next", GITLAB_TOKEN]), Hook)

    def test_may_have_letters_of_any_alphabet(self) -> None:
        """They are sent as UTF-8, which servers decode as Latin-1."""
        known = "schlüssel-鍵"
        sent = gitlab("Note Hook", b"{}", token=known.encode().decode("latin-1"))
        assert isinstance(read(sent.headers, sent.body, secrets=[known]), Ignored)

    @pytest.mark.parametrize(
        "token",
        ["", "other", GITLAB_TOKEN + "x", GITLAB_TOKEN[:-1], "ü", "鍵"],
        ids=["empty", "other", "longer", "shorter", "latin", "chinese"],
    )
    def test_that_is_wrong_is_refused(self, token: str) -> None:
        sent = gitlab("Merge Request Hook", b"no JSON", token=token)
        with pytest.raises(SignatureInvalid) as refusal:
            read(sent.headers, sent.body, secrets=[GITLAB_TOKEN])
        assert GITLAB_TOKEN not in str(refusal.value)

    def test_that_is_missing_is_refused(self) -> None:
        sent = merge_request()
        del sent.headers["X-Gitlab-Token"]
        with pytest.raises(SignatureInvalid) as refusal:
            read(sent.headers, sent.body, secrets=[GITLAB_TOKEN])
        assert refusal.value.header == "X-Gitlab-Token"

    @pytest.mark.parametrize("secrets", [[], [""], [GITLAB_TOKEN, ""], "a string"])
    def test_is_never_accepted_without_a_secret(self, secrets: list[str]) -> None:
        sent = gitlab("Merge Request Hook", b"{}", token="")
        with pytest.raises(InvalidOption) as refused:
            read(sent.headers, sent.body, secrets=secrets)
        assert refused.value.option == "secrets"


class TestASignature:
    """GitLab 19 signs by Standard Webhooks if a webhook has a signing token."""

    def test_is_accepted_with_any_of_the_signing_tokens(self) -> None:
        sent = signed(merge_request())
        hook = read(sent.headers, sent.body, secrets=[new_secret(), GITLAB_SIGNING_TOKEN])
        assert isinstance(hook, Hook)
        assert hook.delivery == GITLAB_DELIVERY

    def test_decides_the_id_of_the_delivery(self) -> None:
        """The other header is not signed: a replay could change it."""
        sent = signed(merge_request(), id="signed-id")
        hook = read(sent.headers, sent.body, secrets=[GITLAB_SIGNING_TOKEN])
        assert isinstance(hook, Hook)
        assert hook.delivery == "signed-id"

    def test_does_not_fit_the_same_json_in_other_bytes(self) -> None:
        sent = signed(merge_request())
        other = json.dumps(json.loads(sent.body), indent=1).encode()
        with pytest.raises(SignatureWrong):
            read(sent.headers, other, secrets=[GITLAB_SIGNING_TOKEN])

    def test_that_is_wrong_is_not_made_up_for_by_a_secret_token(self) -> None:
        sent = signed(merge_request(), secrets=[new_secret()])
        headers = sent.headers | {"X-Gitlab-Token": GITLAB_TOKEN}
        with pytest.raises(SignatureWrong):
            read(headers, sent.body, secrets=[GITLAB_TOKEN, GITLAB_SIGNING_TOKEN])

    def test_may_only_be_left_out_with_a_known_secret_token(self) -> None:
        sent = merge_request()
        with pytest.raises(SignatureInvalid) as refusal:
            read(sent.headers, sent.body, secrets=[GITLAB_SIGNING_TOKEN])
        assert refusal.value.header == "webhook-signature"
        with pytest.raises(SignatureInvalid):
            read(sent.headers, sent.body, secrets=[GITLAB_SIGNING_TOKEN, "another token"])

    def test_has_a_token_that_is_never_accepted_as_a_secret_token(self) -> None:
        sent = gitlab(
            "Merge Request Hook", payload("gitlab_merge_request"), token=GITLAB_SIGNING_TOKEN
        )
        with pytest.raises(SignatureInvalid):
            read(sent.headers, sent.body, secrets=[GITLAB_SIGNING_TOKEN])

    def test_without_a_known_signing_token_leaves_the_check_to_the_secret_token(self) -> None:
        """The webhook has both tokens, and this side knows only the secret one."""
        sent = signed(merge_request())
        headers = sent.headers | {"X-Gitlab-Token": GITLAB_TOKEN}
        assert isinstance(read(headers, sent.body, secrets=[GITLAB_TOKEN]), Hook)

    def test_that_is_too_old_is_refused(self) -> None:
        sent = signed(merge_request())
        later = datetime.now(UTC) + minutes(6)
        with pytest.raises(SignatureStale):
            webhooks.read(sent.headers, sent.body, secrets=[GITLAB_SIGNING_TOKEN], now=later)

    def test_without_its_time_is_refused(self) -> None:
        sent = signed(merge_request())
        del sent.headers["webhook-timestamp"]
        with pytest.raises(SignatureMissing):
            read(sent.headers, sent.body, secrets=[GITLAB_SIGNING_TOKEN])

    def test_is_refused_with_one_kind_of_error(self) -> None:
        assert issubclass(SignatureInvalid, SignatureRefused)


class TestADelivery:
    def test_that_is_received_twice_has_the_same_id(self) -> None:
        assert taken(merge_request()) == taken(merge_request())

    @pytest.mark.parametrize("id", ["a b", "x" * 200, "../../etc", "ü"])
    def test_has_an_id_that_is_valid(self, id: str) -> None:
        sent = gitlab("Push Hook", payload("gitlab_push"), delivery=id)
        assert refused(sent).field == "Idempotency-Key"

    @pytest.mark.parametrize("event", ["", "x" * 200, "Push Hook\n"])
    def test_needs_an_event(self, event: str) -> None:
        assert refused(gitlab(event, payload("gitlab_push"))).field == "X-Gitlab-Event"


class TestADeliveryOfAnOldGitLab:
    """Before 17.4 there was no Idempotency-Key."""

    def test_has_the_same_id_for_the_same_event_and_body(self) -> None:
        assert self.id() == self.id()
        assert len(self.id()) == 32

    def test_has_another_id_for_another_body(self) -> None:
        """Hooks that trigger each other share the event's id."""
        assert self.id() != self.id(after="a" * 40)

    def test_has_another_id_for_another_event(self) -> None:
        """A branch that goes back and forth is announced with equal bodies."""
        assert self.id() != self.id(event="23792a34-cac6-4fda-95a8-c58e00a3954e")

    def test_needs_no_id_of_the_event(self) -> None:
        assert self.id(event="") == self.id(event="")

    def id(self, *, event: str = "13792a34", after: str = "c" * 40) -> str:
        sent = gitlab_push({"after": after})
        del sent.headers["Idempotency-Key"]
        return taken(Delivery(sent.headers | {"X-Gitlab-Event-UUID": event}, sent.body)).delivery


class TestAMessageThatIsNotWhatGitLabDocuments:
    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("object_attributes.iid", -1),
            ("object_attributes.iid", "12"),
            ("object_attributes.last_commit.id", "HEAD"),
            ("object_attributes.oldrev", "HEAD~1"),
            ("object_attributes.source_branch", "a..b"),
            ("object_attributes.target_branch", "a\nb"),
            ("object_attributes.updated_at", "2026-01-01 10:00:00"),
            ("object_attributes.updated_at", 1767261600),
            ("object_attributes.url", "file:///etc/passwd"),
            ("object_attributes.draft", 1),
            ("project.path_with_namespace", "mike/.."),
            ("project.web_url", "https://gitlab.example.com/other"),
            ("project.git_http_url", "git@gitlab.example.com:mike/diaspora.git"),
            ("changes", []),
        ],
    )
    def test_is_refused_with_the_fields_name(self, field: str, value: Any) -> None:
        changes = {field: value}
        if field == "project.path_with_namespace":
            changes["project.web_url"] = f"https://gitlab.example.com/{value}"
        assert refused(merge_request(changes)).field == field

    @pytest.mark.parametrize(
        ("field", "value", "named"),
        [
            ("after", "main", "after"),
            ("ref", "refs/heads/", "ref"),
            ("commits", {}, "commits"),
            ("project", GONE, "body"),
            ("project.web_url", "https://e vil/mike/diaspora", "project.web_url"),
        ],
    )
    def test_is_refused_in_a_push_too(self, field: str, value: Any, named: str) -> None:
        assert refused(gitlab_push({field: value})).field == named

    @pytest.mark.parametrize("body", [b"", b"{", b"null", b"[]", b"\xff\xfe", b"{}x"])
    def test_is_refused_when_it_is_no_such_json(self, body: bytes) -> None:
        assert refused(gitlab("Merge Request Hook", body)).field == "body"

    def test_is_refused_when_it_is_nested_too_deep(self) -> None:
        deep = b'{"object_attributes":{"x":' + b'{"a":' * 50_000 + b"1" + b"}" * 50_002
        error = refused(gitlab("Merge Request Hook", deep))
        assert error.field == "body"
        assert isinstance(error.__context__, RecursionError)
