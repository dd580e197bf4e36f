"""A command as a reviewer: its input, its output, and how it fails."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.apps.reviews.reviewing import a_comment, a_push, a_review, a_task, an_attempt
from towpath import Towpath
from towpath.apps.reviews.errors import ReviewInvalid
from towpath.apps.reviews.handlers import add_reviews
from towpath.apps.reviews.model import Review, ReviewTask, Verdict
from towpath.apps.reviews.options import ReviewsOptions
from towpath.apps.reviews.reviewers.command import NEVER_AGAIN, CommandReviewer
from towpath.apps.reviews.reviewers.errors import (
    ReviewerFailed,
    ReviewerKilled,
    ReviewerRefused,
    ReviewerUnavailable,
)
from towpath.clock import ZERO
from towpath.errors import InvalidOption
from towpath.worker.context import Discard, Retry

TELL = """
import json, os, sys
print("told", json.dumps({"stdin": sys.stdin.read(), "env": dict(os.environ), "argv": sys.argv}))
"""


def python(script: str, *arguments: str, **options: Any) -> CommandReviewer:
    return CommandReviewer([sys.executable, "-c", script, *arguments], **options)


async def told(reviewer: CommandReviewer, task: ReviewTask) -> dict[str, Any]:
    """The input as the program reports it."""
    review = await reviewer.review(task, an_attempt())
    return json.loads(review.summary.removeprefix("told "))


class TestTheInputOfACommand:
    async def test_is_the_task_as_json_on_standard_input(self) -> None:
        task = a_task()
        given = await told(python(TELL), task)
        assert ReviewTask.unpacked(given["stdin"].encode()) == task

    async def test_has_the_fields_of_the_task_in_the_environment(self) -> None:
        env = (await told(python(TELL), a_task(title='It\'s $(a) "fix"; rm -rf *')))["env"]
        told_fields = {
            name: value for name, value in env.items() if name.startswith("TOWPATH_REVIEW_")
        }
        assert told_fields == {
            "TOWPATH_REVIEW_ID": "here",
            "TOWPATH_REVIEW_ATTEMPT": "1",
            "TOWPATH_REVIEW_FORGE": "github",
            "TOWPATH_REVIEW_KIND": "pull",
            "TOWPATH_REVIEW_REPOSITORY": "octo/repo",
            "TOWPATH_REVIEW_NUMBER": "7",
            "TOWPATH_REVIEW_HEAD": "a1" * 20,
            "TOWPATH_REVIEW_BASE": "b2" * 20,
            "TOWPATH_REVIEW_REF": "fix",
            "TOWPATH_REVIEW_TARGET": "main",
            "TOWPATH_REVIEW_TITLE": 'It\'s $(a) "fix"; rm -rf *',
            "TOWPATH_REVIEW_AUTHOR": "ann",
            "TOWPATH_REVIEW_ACTION": "requested",
        }

    async def test_has_no_variable_for_fields_that_a_push_lacks(self) -> None:
        env = (await told(python(TELL), a_push()))["env"]
        assert "TOWPATH_REVIEW_NUMBER" not in env

    async def test_has_no_other_variables_of_the_worker(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """They may hold passwords and tokens."""
        monkeypatch.setenv("TOWPATH_URL", "redis://:secret@example.com")
        monkeypatch.setenv("TOWPATH_REVIEWS__GITHUB_TOKEN", "secret")
        monkeypatch.setenv("LANG", "C.UTF-8")
        env = (await told(python(TELL, environment={"RULES": "strict"}), a_task()))["env"]
        others = {name for name in env if not name.startswith("TOWPATH_REVIEW_")}
        # Python itself sets LC_CTYPE where the language is C.
        assert others - {"LC_CTYPE"} == {"PATH", "HOME", "LANG", "RULES"}
        assert env["RULES"] == "strict"

    async def test_has_its_arguments_unchanged(self) -> None:
        """No shell reads them."""
        argv = (await told(python(TELL, "$HOME", "a b", "; echo"), a_task()))["argv"]
        assert argv[1:] == ["$HOME", "a b", "; echo"]

    async def test_can_be_opened_as_a_file(self) -> None:
        script = "cat /dev/stdin /dev/stdin | wc -c"
        review = await CommandReviewer(["sh", "-c", script]).review(a_task(), an_attempt())
        assert int(review.summary) == 2 * len(a_task().packed())

    async def test_need_not_be_read(self) -> None:
        review = await CommandReviewer(["echo", "fine"]).review(a_task(), an_attempt())
        assert review.summary == "fine"

    async def test_has_a_working_directory(self, tmp_path: Path) -> None:
        script = tmp_path / "review"
        script.write_text("#!/bin/sh\npwd\n")
        script.chmod(0o755)
        reviewer = CommandReviewer(["./review"], directory=tmp_path)
        assert (await reviewer.review(a_task(), an_attempt())).summary == str(tmp_path)


class TestTheOutputOfACommand:
    async def test_may_be_a_review_as_json(self) -> None:
        said = a_review(a_comment())
        printed = python("import sys; print(sys.argv[1])", said.packed().decode())
        assert await printed.review(a_task(), an_attempt()) == said

    async def test_may_be_a_review_as_text(self) -> None:
        review = await python("print('Looks good.')").review(a_task(), an_attempt())
        assert review == Review(summary="Looks good.", verdict=Verdict.COMMENT)

    @pytest.mark.parametrize("output", ["", "  \n", '{"verdict": "approve"}', "{]"])
    async def test_that_is_no_review_is_a_failed_attempt(self, output: str) -> None:
        """It may be a review the next time."""
        reviewer = python("import sys; print(sys.argv[1])", output)
        with pytest.raises(Retry, match="ReviewInvalid") as raised:
            await reviewer.review(a_task(), an_attempt())
        assert isinstance(raised.value.__cause__, ReviewInvalid)

    async def test_is_read_to_the_last_byte(self) -> None:
        most = msgspec.json.encode({"summary": "x" * 50_000})
        script = f"import sys; sys.stdout.write(sys.argv[1] + ' ' * ({1 << 20} - {len(most)}))"
        review = await python(script, most.decode()).review(a_task(), an_attempt())
        assert len(review.summary) == 50_000


class TestACommandThatFails:
    async def test_is_tried_again_with_the_end_of_its_output_as_the_reason(self) -> None:
        script = "import sys; sys.stderr.write('x' * 9000 + '\\n\\x1b[31mno model\\n'); sys.exit(3)"
        with pytest.raises(Retry) as raised:
            await python(script).review(a_task(), an_attempt())
        reason = raised.value.reason
        assert reason.startswith("ReviewerFailed: ")
        assert " …xxx" in reason
        assert reason.endswith("xxx ·[31mno model")
        assert len(reason) < 700
        assert isinstance(raised.value.__cause__, ReviewerFailed)
        assert raised.value.__cause__.exit_code == 3

    async def test_is_not_tried_again_if_its_exit_code_says_so(self) -> None:
        script = (
            f"import sys; print('not a language of mine', file=sys.stderr); sys.exit({NEVER_AGAIN})"
        )
        with pytest.raises(Discard, match="not a language of mine") as raised:
            await python(script).review(a_task(), an_attempt())
        assert isinstance(raised.value.__cause__, ReviewerRefused)

    @pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGPIPE])
    async def test_names_the_signal_that_ended_it(self, number: signal.Signals) -> None:
        script = f"kill -{int(number)} $$"
        with pytest.raises(Retry, match=number.name) as raised:
            await CommandReviewer(["sh", "-c", script]).review(a_task(), an_attempt())
        assert isinstance(raised.value.__cause__, ReviewerKilled)
        assert raised.value.__cause__.signal_name == number.name

    async def test_because_it_does_not_exist_is_tried_again(self, tmp_path: Path) -> None:
        """A deployment may be under way."""
        for name in ("towpath-no-such-program", "./absent", str(tmp_path)):
            reviewer = CommandReviewer([name], directory=tmp_path)
            with pytest.raises(Retry) as raised:
                await reviewer.review(a_task(), an_attempt())
            assert isinstance(raised.value.__cause__, ReviewerUnavailable)
            assert raised.value.__cause__.program == name

    async def test_because_its_directory_does_not_exist_is_tried_again(
        self, tmp_path: Path
    ) -> None:
        reviewer = CommandReviewer(["echo"], directory=tmp_path / "absent")
        with pytest.raises(Retry) as raised:
            await reviewer.review(a_task(), an_attempt())
        assert isinstance(raised.value.__cause__, ReviewerUnavailable)
        assert raised.value.__cause__.program == "echo"


class TestTheConfigurationOfACommand:
    @pytest.mark.parametrize("argv", [[], "ruff check", [""], ["a\0b"], [1]])
    def test_is_a_list_of_words(self, argv: Any) -> None:
        with pytest.raises(InvalidOption, match="command"):
            CommandReviewer(argv)

    def test_is_checked_in_its_other_options_too(self) -> None:
        with pytest.raises(InvalidOption, match="environment"):
            CommandReviewer(["echo"], environment={"A=B": "c"})
        with pytest.raises(InvalidOption, match="within"):
            CommandReviewer(["echo"], within=ZERO)
        with pytest.raises(InvalidOption, match="largest"):
            CommandReviewer(["echo"], largest=0)

    async def test_without_a_path_uses_that_of_the_system(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv("PATH")
        review = await CommandReviewer(["echo", "fine"]).review(a_task(), an_attempt())
        assert review.summary == "fine"
        assert "PATH" not in os.environ


class TestTheCheckBeforeTheFirstTask:
    @pytest.mark.parametrize(
        ("argv", "missing"),
        [
            (["towpath-no-such-program"], "towpath-no-such-program"),
            (["./absent", "x"], "./absent"),
            ([sys.executable, "absent.py"], "absent.py"),
            ([sys.executable, "-u", "-I", "absent.py", "x.py"], "absent.py"),
            ([sys.executable, "-m", "towpath_no_such_module"], "towpath_no_such_module"),
            ([sys.executable, "-B", "-m", "towpath.no_such"], "towpath.no_such"),
            (["sh", "-e", "absent.sh"], "absent.sh"),
        ],
    )
    def test_names_the_missing_program_file_or_module(
        self, tmp_path: Path, argv: list[str], missing: str
    ) -> None:
        reviewer = CommandReviewer(argv, directory=tmp_path)
        with pytest.raises(ReviewerUnavailable) as raised:
            reviewer.require_program()
        assert raised.value.program == missing

    @pytest.mark.parametrize(
        "argv",
        [
            [sys.executable, "here.py"],
            [sys.executable, "-c", "print()", "absent.py"],
            [sys.executable, "-m", "towpath.apps.reviews.model", "absent"],
            [sys.executable, "-m", "here"],
            [sys.executable, "-X", "dev", "absent.py"],
            ["sh", "-c", "absent"],
            ["sh", "./here.py"],
            ["echo", "absent.py"],
        ],
    )
    def test_accepts_a_command_that_exists(self, tmp_path: Path, argv: list[str]) -> None:
        (tmp_path / "here.py").touch()
        CommandReviewer(argv, directory=tmp_path).require_program()

    def test_keeps_an_app_with_a_missing_command_from_starting(self) -> None:
        with pytest.raises(ReviewerUnavailable, match=r"absent\.py"):
            add_reviews(
                Towpath("redis://localhost"),
                CommandReviewer(["python", "absent.py"]),
                ReviewsOptions(),
            )
