"""The public names: listed, there, documented."""

import ast
import inspect
import subprocess
import sys
from importlib import import_module

import pytest

import towpath
from docs.reference.api import members_of
from tests.architecture.sources import SOURCE


def test_are_listed_in_order() -> None:
    constants = [name for name in towpath.__all__ if name.isupper()]
    classes = [name for name in towpath.__all__ if name[0].isupper() and not name.isupper()]
    functions = [name for name in towpath.__all__ if name[0].islower()]
    assert towpath.__all__ == sorted(constants) + sorted(classes) + sorted(functions)


@pytest.mark.parametrize("name", towpath.__all__)
def test_are_there_and_say_what_they_are(name: str) -> None:
    export = getattr(towpath, name)
    if inspect.isclass(export) and export.__module__.startswith("towpath"):
        assert export.__doc__


def test_are_what_a_type_checker_sees() -> None:
    """They are looked up when first used; the imports are only there to be read."""
    tree = ast.parse((SOURCE / "__init__.py").read_text())
    [block] = [
        node for node in tree.body if isinstance(node, ast.If) and isinstance(node.test, ast.Name)
    ]
    imported = {
        name.name: getattr(import_module(node.module or ""), name.name)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for name in node.names
    }
    assert set(imported) == set(towpath.__all__)
    assert [name for name, value in imported.items() if getattr(towpath, name) is not value] == []


def promised() -> dict[str, set[str]]:
    """What the page of import paths lists: names by module."""
    page = (SOURCE.parents[1] / "docs" / "reference" / "python.md").read_text()
    found: dict[str, set[str]] = {}
    module = ""
    for line in page.splitlines():
        if line.startswith(("| `", "| |")):
            _, path, names, _ = line.split("|")
            module = path.strip(" `") or module
            found.setdefault(module, set()).update(names.split("`")[1::2])
    return found


def test_are_on_the_page_of_import_paths() -> None:
    assert promised()["towpath"] == set(towpath.__all__)
    assert 30 <= len(towpath.__all__) <= 35


def test_every_path_on_that_page_is_there() -> None:
    missing = [
        f"{module}.{name}"
        for module, names in promised().items()
        for name in names
        if not hasattr(import_module(module), name)
    ]
    assert missing == []


def test_what_they_offer_says_what_it_is() -> None:
    """The page of the Python API is made of these words."""
    said_nothing: list[str] = []
    for module, names in promised().items():
        for name in names:
            promised_class = getattr(import_module(module), name)
            if not inspect.isclass(promised_class):
                continue
            for member, offered in members_of(promised_class):
                inner = getattr(offered, "__func__", offered)
                if not inspect.getdoc(inner):
                    said_nothing.append(f"{module}.{name}.{member}")
    assert said_nothing == []


@pytest.mark.parametrize(
    "name", ["Lease", "job_ref", "Limits", "ManualClock", "AppHandler", "BlockingJob", "Draft"]
)
def test_a_name_that_moved_says_where_it_is(name: str) -> None:
    with pytest.raises(ImportError, match=rf"towpath\.{name} is now `towpath\..*{name}`"):
        exec(f"from towpath import {name}")  # noqa: S102 -- no checker knows it


def test_looking_one_up_loads_no_application() -> None:
    code = "import sys; from towpath import Towpath; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    parts = loaded.stdout.split()
    assert [
        module for module in parts if module.startswith(("towpath.apps", "towpath.ledger.ledger"))
    ] == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("counts", "inspect.counts"),
        ("configure", "queues.configure"),
        ("ended", "events.ended"),
        ("known_queues", "queues.names"),
        ("fire", "schedules.fire_due"),
        ("recurring", "schedules.of"),
    ],
)
def test_what_moved_to_a_part_of_the_engine_says_where_it_is(old: str, new: str) -> None:
    engine = towpath.Engine("redis://nowhere")
    with pytest.raises(AttributeError, match=rf"^Engine\.{old} is now Engine\.{new}$"):
        getattr(engine, old)
    assert not hasattr(engine, "nothing")


async def test_methods_that_parts_replaced_say_so(engine: towpath.Engine) -> None:
    for part in ("queues", "events"):
        with pytest.raises(AttributeError, match=rf"is now Engine\.{part}\.list"):
            getattr(engine, part)()


@pytest.mark.parametrize("part", ["queues", "inspect", "events", "schedules"])
def test_the_parts_of_an_engine_are_there_once_it_is_entered(part: str) -> None:
    with pytest.raises(RuntimeError, match="is not open"):
        getattr(towpath.Engine("redis://nowhere"), part)


@pytest.mark.parametrize(
    ("module", "old", "new"),
    [
        ("apps.timers.client", "Answer", "TimerAnswer"),
        ("ledger.outbox.options", "EventsOptions", "OutboxOptions"),
        ("apps.application", "Answered", "ErrorCodes"),
        ("embedded", "Connection", "ServerConnection"),
        ("errors", "RecurrenceNotFound", "ScheduleNotFound"),
        ("telemetry.measures", "Kind", "MetricKind"),
        ("web.mount", "Listener", "WebhookListener"),
    ],
)
def test_a_class_that_the_pages_named_says_its_new_name(module: str, old: str, new: str) -> None:
    with pytest.raises(ImportError, match=rf"^towpath\.{module}\.{old} is now {new}$"):
        exec(f"from towpath.{module} import {old}")  # noqa: S102 -- no checker knows it
    assert hasattr(import_module(f"towpath.{module}"), new)
