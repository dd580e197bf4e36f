"""Old words: commands, settings, secrets and methods tell what they are called now."""

from pathlib import Path
from typing import Any, cast

import pytest

from tests.cli.command import Command
from towpath.calls.signature import OUTBOX, derived
from towpath.cli.config import groups
from towpath.engine.schedules import Schedules
from towpath.errors import InvalidOption
from towpath.ledger.outbox.outbox import Outbox
from towpath.ledger.records.jobs import Jobs
from towpath.renamed import COMMANDS
from towpath.settings import load
from towpath.worker.worker import Worker


@pytest.mark.parametrize("old", COMMANDS)
def test_an_old_command_names_the_new_one(old: str, towpath: Command) -> None:
    """Whatever stands before or behind it."""
    for more in ((), ("list", "webhook", "--all")):
        ran = towpath("--json", "--timeout", "1s", *old.split(), *more)
        assert (ran.code, ran.out) == (2, "")
        assert f"`towpath {old}` is now `towpath {COMMANDS[old]}`" in ran.err


@pytest.mark.parametrize("old", COMMANDS)
def test_a_new_command_exists_and_no_help_shows_an_old_one(old: str, towpath: Command) -> None:
    *noun, word = old.split()
    assert towpath(*COMMANDS[old].split(), "--help").code == 0
    shown = towpath(*noun, "--help").out.partition("Commands:")[2]
    assert shown
    assert f"  {word} " not in shown


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("TOWPATH_EVENTS__SINKS", "TOWPATH_OUTBOX__SINKS"),
        ("TOWPATH_EVENTS__KAFKA_OPTIONS_FILE", "TOWPATH_OUTBOX__KAFKA_OPTIONS_FILE"),
    ],
)
@pytest.mark.usefixtures("no_settings")
def test_an_old_variable_is_refused_with_the_new_one(
    old: str, new: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(old, "none")
    with pytest.raises(InvalidOption, match=f"{old} .*is now {new}"):
        load(registry=groups)


@pytest.mark.parametrize(
    ("text", "new"),
    [
        ("[events]\nsinks = []", "outbox.sinks"),
        ("[events.kafka_options]\nlinger = '1'", "outbox.kafka_options.linger"),
        ("[events]", "outbox"),
    ],
)
@pytest.mark.usefixtures("no_settings")
def test_an_old_table_of_a_file_is_refused_with_the_new_one(text: str, new: str) -> None:
    Path("towpath.toml").write_text(text)
    with pytest.raises(InvalidOption, match=rf"is now {new}\n"):
        load(registry=groups)


@pytest.mark.usefixtures("no_settings")
def test_a_name_that_only_begins_like_an_old_one_is_no_setting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TOWPATH_EVENTSOURCE", "1")
    with pytest.raises(InvalidOption, match="is not a setting"):
        load(registry=groups)


def test_a_server_does_not_start_with_an_old_setting(towpath: Command) -> None:
    ran = towpath("serve", "--json", TOWPATH_EVENTS__SINKS="none")
    assert (ran.code, ran.refusal["refused"]) == (2, "invalid_option")
    assert "is now TOWPATH_OUTBOX__SINKS" in ran.refusal["message"]


def test_the_secret_of_the_outbox_is_still_the_one_that_receivers_have(towpath: Command) -> None:
    """It was derived for `events`, and whoever has it keeps it."""
    secret = "whsec_" + "A" * 43 + "="
    assert derived(secret, OUTBOX) == derived(secret, "events")
    ran = towpath("secret", "events", TOWPATH_CALLS__SECRETS=secret)
    assert ran.code == 2
    assert "is now outbox" in ran.err


def test_an_old_option_of_the_worker_names_the_new_one(towpath: Command) -> None:
    ran = towpath("worker", "shop:app", "--burst")
    assert ran.code == 2
    assert "is now --drain" in ran.err
    assert "--burst" not in towpath("worker", "--help").out


@pytest.mark.parametrize(
    ("kind", "old", "new"),
    [
        (Worker, "run_until_empty", "run_until_drained"),
        (Schedules, "remove", "delete"),
        (Schedules, "forget", "delete_declared"),
        (Schedules, "recurring", "of"),
        (Outbox, "discard", "delete"),
        (Jobs, "prune", "trim"),
    ],
)
def test_an_old_method_names_the_new_one(kind: type[Any], old: str, new: str) -> None:
    assert callable(getattr(kind, new))
    made = cast("object", object.__new__(kind))
    with pytest.raises(AttributeError, match=rf"^{kind.__name__}\.{old} is now .*\.{new}$"):
        getattr(made, old)
    assert not hasattr(made, "nothing")
