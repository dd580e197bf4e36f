"""A field of a job is declared once, and is known everywhere."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.architecture.sources import SOURCE
from towpath.engine.model import FIELDS, JobAttributes, Lease
from towpath.engine.script import ARGS, Scripts

ROOT = Path(__file__).parents[2]
DECLARED = '    priority: Annotated[int, Number(0, 100), "0 to 100; higher runs first."]\n'
ATTRIBUTE = "    priority: int = NORMAL\n"


def planted(package: Path) -> None:
    """Plants the field `tier` in a copy of the package: in one file, a declaration and an
    attribute.
    """
    shutil.copytree(SOURCE, package)  # with its compiled files: all but one file is as it was
    model = package / "engine" / "model.py"
    text = model.read_text()
    assert text.count(DECLARED) == text.count(ATTRIBUTE) == 1
    text = text.replace(
        DECLARED, f'{DECLARED}    tier: Annotated[int | None, Number(0, 9), "Planted."]\n'
    )
    model.write_text(text.replace(ATTRIBUTE, f"{ATTRIBUTE}    tier: int | None = None\n"))


def test_a_planted_field_is_known_to_every_surface_lease_and_info(tmp_path: Path) -> None:
    planted(tmp_path / "towpath")
    ran = subprocess.run(
        [sys.executable, "-m", "tests.architecture.planted"],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    everywhere = json.loads(ran.stdout)
    assert len(everywhere) == 6
    assert {seven for seen in everywhere.values() for seven in seen} == {7}
    assert sum(map(len, everywhere.values())) == 14  # on every lease and info, and shown of two


def test_attributes_of_a_job_are_fields_of_jobs_and_leases() -> None:
    assert set(JobAttributes.__struct_fields__) <= set(FIELDS)
    assert set(JobAttributes.__struct_fields__) <= set(Lease.__struct_fields__)


class TestThePrintedScript:
    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "towpath.engine.script", *words],
            capture_output=True, text=True, check=False,
        )  # fmt: skip

    def test_is_complete(self) -> None:
        assert self.run("submit").stdout.rstrip("\n") == Scripts()["submit"].source.rstrip("\n")

    def test_is_one_of_those_that_are_listed(self) -> None:
        assert self.run().stdout.split() == list(ARGS)

    @pytest.mark.parametrize("name", ["", "nope"])
    def test_of_an_unknown_name_is_refused_with_the_known_names(self, name: str) -> None:
        ran = self.run(name)
        assert ran.returncode == 1
        assert "submit, claim" in ran.stderr
