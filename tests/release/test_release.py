"""Wheel and source archive, built here and used in an environment without our other files.

The dependencies are borrowed from the environment of the tests, so no network is needed. With
TOWPATH_TEST_PYPI=1 they are installed from the index instead, as users do.
"""

import os
import signal
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import pytest

from tests.amounts import slow
from tests.architecture.sources import ROOT
from tests.programs import Bounded, ProgramResult
from tests.waiting import HANGS

FROM_INDEX = os.environ.get("TOWPATH_TEST_PYPI") == "1"
APP = """
from towpath import Towpath

app = Towpath()

@app.handler("mails", keep="1h")
async def mail(to: str) -> str:
    return f"sent to {to}"
"""


class Built(NamedTuple):
    wheel: Path
    archive: Path


def build(tree: Path, place: Path) -> Built:
    """Builds without an isolated environment: the build tools are installed."""
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(place)]
    subprocess.run(command, cwd=tree, check=True, capture_output=True, timeout=HANGS)
    [wheel], [archive] = place.glob("*.whl"), place.glob("*.tar.gz")
    return Built(wheel, archive)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    return build(ROOT, tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def unpacked(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The unpacked source archive, for a user without the repository."""
    place = tmp_path_factory.mktemp("sources")
    with tarfile.open(built.archive) as packed:
        packed.extractall(place, filter="data")
    [tree] = place.iterdir()
    return tree


class Environment:
    """A fresh environment with the wheel installed."""

    def __init__(self, place: Path, wheel: Path) -> None:
        self._bin = place / "bin"
        run([sys.executable, "-m", "venv", "--without-pip", str(place)])
        wanted = [f"{wheel}[server,embedded,fast]"] if FROM_INDEX else ["--no-deps", str(wheel)]
        run([*_pip(), "--python", str(self._bin / "python"), "install", "-q", *wanted])
        if not FROM_INDEX:
            # A plain path: editable installs found there are not followed.
            [packages] = place.glob("lib/python*/site-packages")
            (packages / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")

    def __call__(self, program: str, *words: str, cwd: Path) -> ProgramResult:
        return run([str(self._bin / program), *words], cwd=cwd, env=self._env)

    def start(self, *words: str, cwd: Path) -> subprocess.Popen[str]:
        command = [str(self._bin / "towpath"), *words]
        return Bounded[str](
            command, cwd=cwd, env=self._env, text=True, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip

    @property
    def _env(self) -> dict[str, str]:
        return {"PATH": f"{self._bin}:{os.environ['PATH']}", "HOME": os.environ["HOME"]}


def run(words: list[str], **more: Any) -> ProgramResult:
    ran = subprocess.run(words, capture_output=True, text=True, check=False, timeout=600, **more)
    assert ran.returncode == 0, f"{words}: {ran.stdout}{ran.stderr}"
    return ProgramResult(ran.returncode, ran.stdout, ran.stderr)


def _pip() -> list[str]:
    """The pip of this environment, or of the Python that it was made from."""
    for python in (sys.executable, str(Path(sys.base_prefix) / "bin" / "python3")):
        found = subprocess.run([python, "-m", "pip", "--version"], capture_output=True, check=False)
        if found.returncode == 0:
            return [python, "-m", "pip", "--disable-pip-version-check"]
    pytest.skip("there is no pip")


@pytest.fixture(scope="module")
def environment(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    return Environment(tmp_path_factory.mktemp("fresh"), built.wheel)


def files_below(folder: Path) -> set[str]:
    return {
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


class TestTheWheel:
    def test_has_every_file_of_the_package(self, built: Built) -> None:
        """Scripts, templates, assets of the dashboard, and `py.typed`, too."""
        with zipfile.ZipFile(built.wheel) as packed:
            held = {str(PurePosixPath(name)) for name in packed.namelist()}
        wanted = {f"towpath/{path}" for path in files_below(ROOT / "src" / "towpath")}
        assert {path for path in held if path.startswith("towpath/")} == wanted

    def test_prints_its_version_and_lists_its_commands(
        self, environment: Environment, tmp_path: Path
    ) -> None:
        code = (
            "import towpath, importlib.metadata as m; print(towpath.__file__, m.version('towpath'))"
        )
        place, version = environment("python", "-c", code, cwd=tmp_path).out.split()
        assert not Path(place).is_relative_to(ROOT)
        assert version in environment("towpath", "--version", cwd=tmp_path).out
        shown = environment("towpath", "--help", cwd=tmp_path).out
        assert "worker" in shown
        assert "reviews" in shown

    def test_serves_accepts_and_runs_jobs(self, environment: Environment, tmp_path: Path) -> None:
        (tmp_path / "shop.py").write_text(APP)
        with environment.start("up", "--port", "0", "--json", cwd=tmp_path) as server:
            assert server.stdout is not None
            told = ProgramResult(0, server.stdout.readline()).object
            try:
                url = ("--url", told["store"])
                environment(
                    "towpath", "submit", "mails", '"anna"', "--id", "m-1", *url, cwd=tmp_path
                )
                environment("towpath", "worker", "shop:app", "--drain", *url, cwd=tmp_path)
                job = environment(
                    "towpath", "jobs", "show", "mails/m-1", "--json", *url, cwd=tmp_path
                )
                assert (job.object["state"], job.object["result"]) == ("done", "sent to anna")
            finally:
                server.send_signal(signal.SIGTERM)
            assert server.wait() == 0


@slow
class TestTheSourceArchive:
    def test_builds_the_same_wheel(self, built: Built, unpacked: Path, tmp_path: Path) -> None:
        again = build(unpacked, tmp_path)
        with zipfile.ZipFile(built.wheel) as one, zipfile.ZipFile(again.wheel) as other:
            assert {member.filename: member.CRC for member in one.infolist()} == {
                member.filename: member.CRC for member in other.infolist()
            }

    @pytest.mark.skipif(FROM_INDEX, reason="the tools of the tests are not installed")
    def test_has_everything_that_its_tests_need(
        self, environment: Environment, unpacked: Path
    ) -> None:
        """Some tests of each kind are run against the package of the wheel: all of them take
        minutes.
        """
        some = ["spec/test_priority.py", "demo/test_facts.py", "architecture/test_public.py"]
        words = ["-q", "-p", "no:cacheprovider", *(f"tests/{path}" for path in some)]
        said = environment("python", "-m", "pytest", *words, cwd=unpacked).out
        assert " passed" in said
