"""The settings of reviews: commands as lists of words, secrets in files, and no secret shown."""

import json
from pathlib import Path

import pytest

from tests.cli.command import Command
from towpath.cli.config import groups
from towpath.errors import InvalidOption
from towpath.settings import Settings
from towpath.settings import load as loaded
from towpath.settings.sources import Origin

pytestmark = pytest.mark.usefixtures("no_settings")

CANARY = "canary-51c7"
SECRET = ("github_secrets", "gitlab_secrets", "github_token", "gitlab_token", "reviewer_url")


def load() -> Settings:
    """All settings, with the groups that the command line knows."""
    return loaded(registry=groups)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("python reviewer.py", ("python", "reviewer.py")),
        ("run 'two words' $HOME ; ls", ("run", "two words", "$HOME", ";", "ls")),
        ('["run", "two words"]', ("run", "two words")),
    ],
)
def test_a_command_is_a_list_of_words_without_a_shell(
    text: str, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOWPATH_REVIEWS__REVIEWER_COMMAND", text)
    assert load().value("reviews.reviewer_command") == words
    monkeypatch.delenv("TOWPATH_REVIEWS__REVIEWER_COMMAND")
    Path("towpath.toml").write_text(f"[reviews]\nreviewer_command = {json.dumps(words)}\n")
    assert load().value("reviews.reviewer_command") == words


@pytest.mark.parametrize("text", ['["run"', "run 'half", "[1]"])
def test_an_invalid_command_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOWPATH_REVIEWS__REVIEWER_COMMAND", text)
    with pytest.raises(InvalidOption, match="reviewer_command"):
        load()


def test_a_command_gets_the_variables_that_are_named_and_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TOWPATH_REVIEWS__REVIEWER_VARIABLES", "MODEL_KEY, NOT_SET")
    monkeypatch.setenv("MODEL_KEY", "k")
    assert load().value("reviews.reviewer_variables") == {"MODEL_KEY": "k"}


@pytest.mark.parametrize("name", SECRET)
def test_a_secret_may_come_from_a_file(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    variable = f"TOWPATH_REVIEWS__{name.upper()}"
    Path("secret").write_text(f"{CANARY}\n")
    monkeypatch.setenv(f"{variable}_FILE", "secret")
    wanted = (CANARY,) if name.endswith("secrets") else CANARY
    assert load().value(f"reviews.{name}") == wanted
    assert load().origin(f"reviews.{name}") == Origin("variable", f"{variable}_FILE")


def test_several_secrets_are_separated_by_commas_or_lines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TOWPATH_REVIEWS__GITHUB_SECRETS", "old, new")
    Path("secrets").write_text("old\nnew\n")
    monkeypatch.setenv("TOWPATH_REVIEWS__GITLAB_SECRETS_FILE", "secrets")
    for name in ("reviews.github_secrets", "reviews.gitlab_secrets"):
        assert load().value(name) == ("old", "new")


def test_no_secret_is_ever_shown(towpath: Command) -> None:
    """I21: neither by `towpath config`, nor in an error."""
    env = {f"TOWPATH_REVIEWS__{name.upper()}": CANARY for name in SECRET}
    for words in (("config",), ("config", "--json")):
        ran = towpath(*words, **env)
        assert ran.code == 0
        assert "reviews.github_token" in ran.out
        assert CANARY not in ran.out + ran.err
    env["TOWPATH_REVIEWS__GITHUB_TOKEN_FILE"] = "x"  # noqa: S105 -- a file's name
    refused = towpath("config", **env)
    assert refused.code == 2
    assert CANARY not in refused.out + refused.err
