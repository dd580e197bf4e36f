"""`towpath demo` as a whole: real processes, a worker and Redis killed, and the resulting table."""

import re
from pathlib import Path
from typing import Any

import pytest

from tests.amounts import slow
from tests.cli.command import Command
from tests.programs import ProgramResult

SMALL = (
    "--users", "4", "--messages", "2", "--timers", "4", "--reviews", "4", "--issues", "3",
    "--agents", "2", "--over", "1", "--within", "500", "--json",
)  # fmt: skip


@pytest.fixture
def towpath(tmp_path: Path) -> Command:
    """Settings in the environment of the user must not affect the demo; these would break it."""
    (tmp_path / "towpath.toml").write_text("port = 1\n")
    command = Command("redis://nowhere.invalid", tmp_path)
    command.env["TMPDIR"] = str(tmp_path)
    return command


def by_application(ran: ProgramResult) -> dict[str, dict[str, Any]]:
    return {row["application"]: row for row in ran.objects}


def test_everything_is_kept_though_a_worker_and_redis_are_killed(
    towpath: Command, tmp_path: Path
) -> None:
    ran = towpath("demo", *SMALL)
    rows = by_application(ran)
    assert {name: row["sent"] for name, row in rows.items()} == {
        "reviews": 4, "messages": 8, "timers": 4, "uploads": 3, "issues": 3,
    }  # fmt: skip
    for row in rows.values():
        assert (row["done"], row["lost"], row["doubled"]) == (row["sent"], 0, 0), row
    assert (rows["messages"]["out_of_order"], rows["timers"]["out_of_order"]) == (0, 0)
    assert rows["timers"]["late_s"] >= 0
    # The demo writes a line with the process id for each process that it kills.
    worker, store = re.findall(r"\b(\d+) \(SIGKILL\)", ran.err)
    assert worker != store
    assert ran.code == 0
    assert list(tmp_path.glob("towpath-demo-*")) == []


@slow
def test_a_loss_is_reported(towpath: Command) -> None:
    """The test removes a timer: the table and the exit code show the loss."""
    ran = towpath("demo", *SMALL, "--plant-loss")
    rows = by_application(ran)
    assert (rows["timers"]["sent"], rows["timers"]["done"], rows["timers"]["lost"]) == (5, 4, 1)
    assert sum(row["lost"] for row in rows.values()) == 1
    assert ran.code == 1
