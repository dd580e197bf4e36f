"""One verb per idea, in commands, methods and paths; and what leaves is called the outbox."""

import inspect
from collections.abc import Iterable, Iterator
from functools import cache
from importlib import import_module
from typing import Any

import pytest
import typer.main

from docs.reference.api import members_of
from docs.reference.http import description
from tests.architecture.test_public import promised
from towpath.cli.config import groups
from towpath.cli.main import app, nouns
from towpath.renamed import COMMANDS
from towpath.settings import Core, leaves
from towpath.telemetry import events, measures

SYNONYMS = {
    "delete": "remove purge clear discard forget erase wipe prune destroy expunge drop",
    "cancel": "abort revoke kill terminate withdraw abandon",
    "drain": "burst empty flush exhaust",
    "dead": "failed buried graveyard dlq morgue deadletter",
}
"""Words that say what the glossary has another word for."""
EXCEPTIONS = {
    "lanes drop": "a word of the glossary: the dead head stays, and the lane goes on without it",
    "keys revoke": "the key's row stays, with the time of its end",
    "uploads abort": "what tus and S3 call it",
    "Engine.drop": "as `lanes drop`",
    "ApiKeys.revoke": "as `keys revoke`",
    "Handlers.remove": "takes a handler out of a running app; nothing that is stored goes",
    "Handlers.forget": "as `remove`: how a group tells its app",
    "Towpath.remove": "as in Handlers",
    "Towpath.forget": "as in Handlers",
    "EmbeddedServer.kill": "a process is killed, as by SIGKILL",
    "UploadService.abort": "as `uploads abort`",
    "POST /api/v1/queues/{queue}/lanes/{lane}/drop": "as `lanes drop`",
    "DELETE /api/v1/keys/{id} revoke_key": "as `keys revoke`",
    "DELETE /api/v1/uploads/{id} abort": "as `uploads abort`",
}
PARTS = {
    "towpath.engine.queues": "Queues",
    "towpath.engine.inspect": "Inspector",
    "towpath.engine.follow": "Events",
    "towpath.engine.schedules": "Schedules",
    "towpath.engine.living": "Workers",
    "towpath.ledger.records.jobs": "Jobs",
    "towpath.ledger.outbox.outbox": "Outbox",
    "towpath.ledger.keys.keys": "ApiKeys",
    "towpath.apps.messages.service": "Messages",
    "towpath.apps.reviews.service": "Reviews",
    "towpath.apps.timers.service": "TimerService",
    "towpath.apps.uploads.service": "UploadService",
    "towpath.apps.issues.service": "Issues",
}
"""Classes that users meet as a part of one that is promised, or as an application's service."""


def commands(command: Any = None, above: str = "") -> Iterator[tuple[str, Any]]:
    """Every noun and verb of the command line, as one writes it behind `towpath`."""
    for name, found in nouns(command or typer.main.get_command(app)).items():
        yield f"{above}{name}", found
        yield from commands(found, f"{above}{name} ") if nouns(found) else ()


def options() -> set[str]:
    params = [param for _, command in commands() for param in command.params]
    shown = [each for each in params if not getattr(each, "hidden", False)]
    return {name for each in shown for name in each.opts if name.startswith("--")}


def methods() -> Iterator[str]:
    for module, names in (*promised().items(), *((part, {name}) for part, name in PARTS.items())):
        for name in sorted(names):
            kind = getattr(import_module(module), name)
            if inspect.isclass(kind) and not issubclass(kind, BaseException):
                yield from (f"{kind.__name__}.{member}" for member, _ in members_of(kind))


@cache
def operations() -> list[tuple[str, str, bool]]:
    """Method and path, the function's name, and whether it is deprecated."""
    found: list[tuple[str, str, bool]] = []
    for path, methods in description()["paths"].items():
        for method, about in methods.items():
            end = "".join(each if each.isalnum() else "_" for each in path) + f"_{method}"
            name = about["operationId"].removesuffix(end)
            found.append((f"{method.upper()} {path}", name, about.get("deprecated", False)))
    return found


def paths() -> Iterator[str]:
    for where, name, _ in operations():
        yield where if name in where.split("/") else f"{where} {name}"


def other_words(names: Iterable[str]) -> dict[str, str]:
    """Which of *names* say another word than the glossary does, and which it should be."""
    found: dict[str, str] = {}
    for name in names:
        words = "".join(each if each.isalpha() else " " for each in name.lower()).split()
        for right, wrong in SYNONYMS.items():
            if set(words) & set(wrong.split()):
                found[name] = right
    return found


KINDS = {
    "commands": lambda: (name for name, _ in commands()),
    "options": options,
    "methods": methods,
    "paths": paths,
}


@pytest.mark.parametrize("kind", KINDS)
def test_each_idea_has_one_verb(kind: str) -> None:
    names = list(KINDS[kind]())
    assert len(names) > 50
    assert {name: each for name, each in other_words(names).items() if name not in EXCEPTIONS} == {}


def test_exceptions_are_needed_and_say_why() -> None:
    names = {name for kind in KINDS.values() for name in kind()}
    assert set(EXCEPTIONS) <= set(other_words(names))
    assert all(len(reason.split()) >= 2 for reason in EXCEPTIONS.values())


@pytest.mark.parametrize(
    ("name", "right"),
    [
        ("schedules remove", "delete"),
        ("dead purge", "delete"),
        ("worker --burst", "drain"),
        ("Worker.run_until_empty", "drain"),
        ("Jobs.prune", "delete"),
        ("POST /api/v1/jobs/{id}/abort", "cancel"),
    ],
)
def test_another_word_is_found(name: str, right: str) -> None:
    assert other_words(["queues list", name, "Job.cancel"]) == {name: right}


def test_no_old_command_is_back() -> None:
    assert set(COMMANDS) & {name for name, _ in commands()} == set()


def test_cancelling_over_http_is_called_cancel() -> None:
    """Those that are deprecated say so to whoever reads the description."""
    found = [where for where, name, is_old in operations() if name == "cancel" and not is_old]
    assert len(found) >= 4
    assert [
        each for each in found if not (each.startswith("POST ") and each.endswith("/cancel"))
    ] == []


# ── what leaves is the outbox ────────────────────────────────────────────────────────────


def test_no_command_and_no_group_of_settings_is_called_events() -> None:
    names = [name for name, _ in commands()]
    settings = [leaf.name for leaf in leaves(groups(Core()))]
    assert "outbox" in names
    assert "outbox.sinks" in settings
    assert [each for each in names if "events" in each.split()] == []
    assert [each for each in settings if each.startswith("events")] == []


def test_metrics_and_log_lines_about_sinks_say_outbox() -> None:
    counted = [each.name for each in measures.CATALOGUE if "sink" in each.labels]
    assert counted
    assert [each for each in counted if not each.startswith("towpath_outbox_")] == []
    told = [each.name for each in events.CATALOGUE if "sink" in each.fields]
    assert told
    assert [each for each in told if not each.startswith(("outbox.", "sink."))] == []
