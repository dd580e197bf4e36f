"""Files that Towpath makes: whole or missing, and unreadable to other users."""

import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.architecture.sources import ROOT
from tests.cli.command import Command
from towpath.cli.serving import kept_secret
from towpath.embedded.home import Home
from towpath.embedded.objects import kept_keys
from towpath.files import FileDamaged

MAKERS = {
    "kept": "from towpath.files import kept_file; kept_file(path, 'secret')",
    "replaced": "from towpath.files import replace_file; replace_file(path, 'secret')",
}
FULL_DISK = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))"
KILLED = """
import os, sys
sys.addaudithook(lambda event, _: event in ("os.rename", "os.link") and os.kill(os.getpid(), 9))
"""
every_maker = pytest.mark.parametrize("name", MAKERS)


def make(path: Path, *, trouble: str) -> int:
    """Makes the file in a process in which *trouble* occurs; returns how that ended."""
    # Loaded before the trouble begins, which would otherwise affect the loading.
    [module, _] = MAKERS[path.name].split(" import ", 1)
    code = (
        f"import pathlib, signal; {module.replace('from', 'import')}\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        f"{trouble}\npath = pathlib.Path({str(path)!r})\n{MAKERS[path.name]}"
    )
    words = [sys.executable, "-B", "-c", code]
    return subprocess.run(words, check=False, stderr=subprocess.DEVNULL).returncode


class TestAWriteThatDoesNotEnd:
    @every_maker
    def test_on_a_full_disk_leaves_no_file(self, name: str, tmp_path: Path) -> None:
        assert make(tmp_path / name, trouble=FULL_DISK) != 0
        assert list(tmp_path.iterdir()) == []

    @every_maker
    def test_by_a_kill_leaves_no_file(self, name: str, tmp_path: Path) -> None:
        assert make(tmp_path / name, trouble=KILLED) == -9
        assert not (tmp_path / name).exists()
        assert make(tmp_path / name, trouble="") == 0

    @pytest.mark.parametrize("trouble", [FULL_DISK, KILLED])
    def test_leaves_the_file_that_was_there(self, trouble: str, tmp_path: Path) -> None:
        (tmp_path / "replaced").write_text("as it was")
        assert make(tmp_path / "replaced", trouble=trouble) != 0
        assert (tmp_path / "replaced").read_text() == "as it was"


class TestAFile:
    @every_maker
    def test_can_be_read_by_its_owner_only(self, name: str, tmp_path: Path) -> None:
        assert make(tmp_path / name, trouble="import os; os.umask(0)") == 0
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o600
        assert [path.name for path in tmp_path.iterdir()] == [name]

    def test_that_several_processes_create_at_once_is_the_same_for_all(
        self, tmp_path: Path
    ) -> None:
        path, start = tmp_path / "signing.secret", threading.Barrier(8)
        secrets: list[str] = []

        def begin() -> None:
            start.wait()
            secrets.append(kept_secret(path))

        threads = [threading.Thread(target=begin) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert secrets == [path.read_text()] * 8

    def test_of_every_kind_can_be_read_by_its_owner_only(self, tmp_path: Path) -> None:
        kept_secret(tmp_path / "signing.secret")
        kept_keys(tmp_path / "s3.json")
        Home(tmp_path).write_config("port 7")
        assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}

    def test_is_written_by_one_function_only(self) -> None:
        writing = re.compile(r"""\.write_(text|bytes)\(|open\([^)]*["'][wx+]""")
        package = ROOT / "src" / "towpath"
        found = [path for path in package.rglob("*.py") if writing.search(path.read_text())]
        assert found == []


class TestADamagedFile:
    @pytest.mark.parametrize("found", ["", "whsec_", "whsec_c2hvcnQ=", "\0" * 40])
    def test_is_refused_and_left_as_it_is(self, found: str, tmp_path: Path) -> None:
        path = tmp_path / "signing.secret"
        path.write_text(found)
        with pytest.raises(FileDamaged, match=r"signing\.secret"):
            kept_secret(path)
        assert path.read_text() == found

    def test_is_not_a_secret_with_a_newline(self, tmp_path: Path) -> None:
        path = tmp_path / "signing.secret"
        secret = kept_secret(path)
        path.write_text(secret + "\n")
        assert kept_secret(path) == secret

    def test_keeps_the_server_from_starting(self, towpath: Command, tmp_path: Path) -> None:
        (tmp_path / "data").mkdir()
        (tmp_path / "data" / "signing.secret").write_text("")
        ran = towpath("up", "--data", "data", "--port", "0", "--json")
        assert (ran.code, ran.refusal["refused"]) == (1, "file_damaged")
        assert "signing.secret" in ran.refusal["message"]

    @pytest.mark.parametrize("found", ["", "{", '{"identities": []}'])
    def test_of_the_object_store_is_refused_too(self, found: str, tmp_path: Path) -> None:
        (tmp_path / "s3.json").write_text(found)
        with pytest.raises(FileDamaged, match=r"s3\.json"):
            kept_keys(tmp_path / "s3.json")
