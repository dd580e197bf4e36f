"""Sentences of the docs that list values of the code: the lists are complete and correct."""

import re
import tomllib
from pathlib import Path

import psycopg

from tests.architecture.sources import ROOT
from tests.postgres import PostgresServer
from towpath.apps.timers.log import FiringOutcome
from towpath.clock import hours
from towpath.engine.engine import Engine
from towpath.engine.wakeups import WAIT_CAP

HOW_TO = ROOT / "docs" / "how-to"
SQL = re.compile(r"^```sql\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def words_in(path: Path, before: str, after: str) -> set[str]:
    """The words in code font between two texts of a page."""
    return set(re.findall(r"`(\w+)`", path.read_text().partition(before)[2].partition(after)[0]))


def test_the_log_of_firings_has_the_outcomes_of_its_page() -> None:
    told = words_in(HOW_TO / "use-timers.md", "every attempt: `outcome` (", ")")
    assert told == set(FiringOutcome)


async def test_a_fencing_token_fits_the_column_of_its_example(
    engine: Engine, running_postgres: PostgresServer
) -> None:
    [text] = SQL.findall((HOW_TO / "write-handlers.md").read_text())
    column, update = [line.strip() for line in text.split(";") if line.strip()]
    update = re.sub(r":(\w+)", r"%(\1)s", update)
    await engine.submit("invoices", b"1")
    [first] = await engine.claim("invoices", worker="a", lease=hours(1))
    await engine.release(first)
    [second] = await engine.claim("invoices", worker="b", lease=hours(1))
    url = running_postgres.new_database("fencing")
    with psycopg.connect(url, autocommit=True) as database:
        database.execute("CREATE TABLE invoices (id INT, pdf TEXT)")
        database.execute("INSERT INTO invoices VALUES (7, '')")
        database.execute(column.encode())
        changed: list[int] = []
        for lease in (second, first, second):
            given = {"id": 7, "pdf": lease.worker, "token": lease.token}
            changed.append(database.execute(update.encode(), given).rowcount)
        assert changed == [1, 0, 1]
        assert database.execute("SELECT pdf FROM invoices").fetchall() == [("b",)]


# ── the comparison with other queues ─────────────────────────────────────────────────────

LESS_IS_BETTER = {"pick-up", "late", "server", "bytes", "calls"}
NUMBERS = ("none", "one", "two", "three", "four", "five", "six", "seven")


def rows_of(text: str) -> dict[str, dict[str, float]]:
    """The figures in the table of queues, by queue and column."""
    lines = text.partition("<!-- peers")[2].partition("<!-- /peers")[0].splitlines()
    table = [[cell.strip(" *") for cell in line.split("|")[1:-1]] for line in lines if "|" in line]
    columns = [name.partition(",")[0] for name in table[0]]
    found: dict[str, dict[str, float]] = {}
    for name, *cells in table[2:]:
        figures = zip(columns[1:], (cell.replace(",", "") for cell in cells), strict=True)
        found[name] = {key: float(text) for key, text in figures if re.fullmatch(r"[\d.]+", text)}
    return found


def ahead_in(column: str, rows: dict[str, dict[str, float]]) -> set[str]:
    ours = rows["Towpath"][column]
    sign = -1 if column in LESS_IS_BETTER else 1
    return {name for name, row in rows.items() if (row.get(column, ours) - ours) * sign > 0}


def test_the_comparison_names_every_queue_that_is_ahead() -> None:
    text = (ROOT / "docs" / "comparison.md").read_text()
    rows = rows_of(text)
    table = text.partition("| ahead of Towpath |\n")[2].partition("\n\n")[0]
    told = dict(re.findall(r"^\| ([\w-]+) \| ([^:|]*)", table, re.MULTILINE))
    wanted = {column: ahead_in(column, rows) for column in rows["Towpath"] if column != "killed"}
    named = {column: set(names.strip().split(", ")) for column, names in told.items()}
    assert named == {column: names for column, names in wanted.items() if names}


def test_the_readme_counts_every_queue_that_is_ahead() -> None:
    text = (ROOT / "README.md").read_text()
    told = re.sub(r"\s+", " ", text).partition("Ahead of Towpath are ")[2].partition(". ")[0]
    counts = {column: number for number, column in re.findall(
        r"(\w+)(?: queues?)? in \*([\w-]+)\*", told)}  # fmt: skip
    rows = rows_of(text)
    wanted = {column: len(ahead_in(column, rows)) for column in rows["Towpath"]}
    assert counts == {column: NUMBERS[number] for column, number in wanted.items() if number}


def test_the_other_queues_send_a_command_or_more_for_each_job_that_they_run() -> None:
    text = (ROOT / "docs" / "benchmarks.md").read_text()
    lines = text.partition("<!-- peers")[2].partition("<!-- /peers")[0].splitlines()
    head = next(line for line in lines if "commands sent/job" in line).split("|")
    at = [cell.strip() for cell in head].index("commands sent/job")
    rows = [line.split("|") for line in lines if line.startswith("| ") and " + " in line]
    sent = {row[1].strip(" *"): float(row[at].split("+")[1].split("=")[0]) for row in rows}
    ours = max(sent.pop("Towpath"), sent.pop("Towpath, watched"))
    assert len(sent) == 10
    assert ours < 0.03
    assert min(sent.values()) >= 1


# ── others ───────────────────────────────────────────────────────────────────────────────


def test_the_page_says_how_often_a_waiting_worker_polls() -> None:
    text = (ROOT / "docs" / "explanation" / "promises.md").read_text()
    assert re.findall(r"least every (\d+) s", text) == [f"{WAIT_CAP.total_seconds():.0f}"]


def test_pages_know_whether_the_version_is_released() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    is_released = f"## {version}" in (ROOT / "CHANGELOG.md").read_text()
    pages = (ROOT / "README.md", HOW_TO / "upgrade.md")
    assert {is_released == ("not released yet" not in page.read_text()) for page in pages} == {True}
