"""The example of a shop: its own tests pass, and type checkers find wrong uses."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.amounts import slow

ROOT = Path(__file__).parents[2]
SHOP = ROOT / "examples" / "shop"
MISTAKES = """
from shop.jobs import Mail, Order, Step, app, book, daily_report, send_mail, thumbnail
from towpath import Context, Every, Towpath

async def use() -> None:
    await send_mail.submit()  # refused
    await send_mail.submit("anna")  # refused
    await send_mail.submit(Mail("anna"))  # refused
    await send_mail.submit(Mail("anna", "hello"), dealy="5s")  # refused
    await send_mail.submit(Mail("anna", "hello"), delay=b"5s")  # refused
    await send_mail.submit(Mail("anna", "hello"), delay="5s", lane="anna")
    await daily_report.submit()
    await daily_report.submit(1)  # refused by pyright alone: for mypy, it is a handler of Any
    thumbnail.blocking.submit()  # refused
    path: int = thumbnail.blocking.submit("cat.png").result(within=5)  # refused
    await book.submit_many([book.new(Order(1, "anna", 5), priority=3), Order(2, "ben", 7)])
    await book.submit_many([thumbnail.new("cat.png")])  # refused
    step = await thumbnail.job("a").progress(Step)
    print(path, step.done)  # refused
    print(book.ticket)  # refused
    app.recur(send_mail, Every("1h"))  # refused
    app.recur(send_mail, Every("1h"), "anna")  # refused
    app.recur(send_mail, Every("1h"), Mail("anna", "hello"), name="hourly")
    app.recur(daily_report, Every("1h"))
    await send_mail.schedule("hourly", Every("1h"))  # refused
    await send_mail.schedule("hourly", Every("1h"), Mail("anna", "hello"))

async def wrong(ctx: Context) -> int:
    return 1

Towpath(middleware=[wrong])  # refused
Towpath(lifespan=wrong)  # refused
"""


def test_the_shops_own_tests_pass() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "0", str(SHOP)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, check=False, text=True)
    assert done.returncode == 0, done.stdout
    assert "6 passed" in done.stdout


def refused(words: str = "# refused") -> set[int]:
    return {n for n, line in enumerate(MISTAKES.splitlines(), 1) if words in line}


@pytest.fixture
def mistakes(tmp_path: Path) -> Path:
    path = tmp_path / "mistakes.py"
    path.write_text(MISTAKES)
    return path


def test_pyright_finds_the_mistakes_and_no_others(mistakes: Path) -> None:
    command = [sys.executable, "-m", "basedpyright", "--outputjson", "--level", "error"]
    files = [str(path) for path in (SHOP / "jobs.py", SHOP / "web.py", mistakes)]
    command += [f"--pythonpath={sys.executable}", *files]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
    found: list[dict[str, Any]] = msgspec.json.decode(done.stdout)["generalDiagnostics"]
    assert {mistake["file"] for mistake in found} == {str(mistakes)}
    assert {mistake["range"]["start"]["line"] + 1 for mistake in found} == refused()


@slow
def test_mypy_finds_the_mistakes_and_no_others(mistakes: Path) -> None:
    cache = f"--cache-dir={Path(sys.prefix) / '.mypy_cache'}"
    options = ["--no-error-summary", "--hide-error-context", "--follow-imports=silent", cache]
    files = [str(path) for path in (SHOP / "jobs.py", SHOP / "web.py", mistakes)]
    command = [sys.executable, "-m", "mypy", *options, *files]
    paths = {"MYPYPATH": os.pathsep.join([str(ROOT / "examples"), str(ROOT / "src")])}
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, check=False, text=True, env=os.environ | paths
    )
    errors = [line for line in done.stdout.splitlines() if ": error: " in line]
    found = {int(line.split(":")[1]) for line in errors if "mistakes.py" in line}
    assert found == refused() - refused("by pyright alone")
    assert [line for line in errors if "mistakes.py" not in line] == []
