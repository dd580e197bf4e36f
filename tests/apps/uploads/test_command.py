"""`towpath upload`: the real command against a real server, interrupted, cut off and refused."""

import json
import os
import random
import secrets
import signal
import socket
import subprocess
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pytest

from tests.apps.uploads.cutting_relay import cutting_relay
from tests.cli.command import Command
from tests.programs import COMMAND, Program
from tests.server.serving import RunningServer, serving
from tests.waiting import HANGS, eventually
from towpath.apps.uploads.client import errors
from towpath.apps.uploads.client.errors import UploadServerUnreachable
from towpath.apps.uploads.client.sending import Sending, SendOptions, StopSignal
from towpath.apps.uploads.options import MIB
from towpath.calls.own_server import ServerAddress
from towpath.errors import TowpathError

ROOT = "/api/v1/uploads"


KEY = secrets.token_hex(32)


@pytest.fixture
def port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as door:
        return door.getsockname()[1]


@contextmanager
def up(home: Path, port: int, **more: str) -> Generator[RunningServer]:
    """A server by `towpath up`; the same one if it is started again."""
    home.mkdir(exist_ok=True)
    data, env = home / "data", {"TOWPATH_API_KEY": KEY, **more}
    database = f"sqlite:///{data}/towpath.db"
    words = ("up", "--data", str(data))
    with serving(*words, database=database, log=home / "log", env=env, port=port) as served:
        yield served


@pytest.fixture
def served(tmp_path: Path, port: int) -> Iterator[RunningServer]:
    with up(tmp_path / "up", port) as running:
        yield running


@pytest.fixture
def command(served: RunningServer, tmp_path: Path) -> Command:
    return command_for(served, tmp_path)


def command_for(served: RunningServer, folder: Path) -> Command:
    command = Command("redis://127.0.0.1:1", folder)
    command.env |= {"TOWPATH_API_URL": served.address, "TOWPATH_API_KEY": served.key}
    return command


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file of three parts."""
    path = tmp_path / "film.bin"
    path.write_bytes(random.Random(5).randbytes(20 * MIB + 11))
    return path


def content(served: RunningServer, sent: dict[str, Any]) -> bytes:
    return served.client().get(f"{ROOT}/{sent['upload_id']}/content").content


def begun(command: Command, words: list[str], stdin: IO[str] | None = None) -> Program[str]:
    """Start the command."""
    return Program[str](
        [COMMAND, *words],
        env=command.env,
        cwd=command.directory,
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def uploads(served: RunningServer) -> list[dict[str, Any]]:
    return served.client().get(ROOT).json()["uploads"]


class TestUpload:
    def test_upload_sends_files_and_reports_each(
        self, command: Command, served: RunningServer, file: Path, tmp_path: Path
    ) -> None:
        (tmp_path / "empty").write_bytes(b"")
        (tmp_path / "ä b.txt").write_text("small")
        names = ["film.bin", "empty", "ä b.txt"]
        ran = command("upload", *names, "--json", "--chunk-size", "256k", "--connector", "c1")
        assert ran.code == 0, ran.err
        told = {line["file"]: line for line in map(json.loads, ran.out.splitlines())}
        assert set(told) == set(names)
        for name, sent in told.items():
            assert (sent["status"], sent["checksum"]["algorithm"]) == ("COMPLETED", "crc64nvme")
            assert content(served, sent) == (tmp_path / name).read_bytes()
        assert command.env["TOWPATH_API_KEY"] not in ran.out + ran.err
        again = command("upload", "film.bin", "--json", "--chunk-size", "256k", "--connector", "c1")
        assert json.loads(again.out)["upload_id"] == told["film.bin"]["upload_id"]
        assert json.loads(again.out)["resumed_from"] == file.stat().st_size
        words = ("--again", "--connector", "c1", "--chunk-size", "256k", "--json")
        anew = command("upload", "empty", *words)
        assert json.loads(anew.out)["upload_id"] != told["empty"]["upload_id"]
        assert len(uploads(served)) == 4

    def test_upload_sends_small_files_in_parallel_and_prints_a_line_for_each(
        self, command: Command, tmp_path: Path
    ) -> None:
        names = [f"{number}.txt" for number in range(40)]
        for name in names:
            (tmp_path / name).write_text(name)
        ran = command("upload", *names, "--json", "--parallel", "16")
        assert ran.code == 0, ran.err
        assert {line["file"] for line in ran.objects} == set(names)

    def test_upload_without_the_crc_library_sends_a_sha256(
        self, command: Command, served: RunningServer, tmp_path: Path
    ) -> None:
        """As in an installation without extras: the module cannot be imported."""
        (tmp_path / "lib" / "awscrt").mkdir(parents=True)
        broken = "raise ModuleNotFoundError('awscrt')"
        (tmp_path / "lib" / "awscrt" / "__init__.py").write_text(broken)
        (tmp_path / "f").write_text("x")
        ran = subprocess.run(
            [COMMAND, "upload", "f", "--json"],
            env=command.env | {"PYTHONPATH": str(tmp_path / "lib")},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
            timeout=HANGS,
        )
        assert ran.returncode == 0, ran.stderr
        assert json.loads(ran.stdout)["checksum"]["algorithm"] == "sha256"

    def test_upload_reads_standard_input(self, command: Command, served: RunningServer) -> None:
        ran = command("upload", "-", "--name", "x.txt", "--json", input="hello")
        assert content(served, json.loads(ran.out)) == b"hello"
        assert uploads(served)[0]["name"] == "x.txt"

    def test_upload_shows_a_bar_with_rate_and_remaining_time(
        self, command: Command, file: Path
    ) -> None:
        ran = command.in_terminal("upload", file.name).end()
        assert ran.code == 0
        assert "20.0/20.0 MiB" in ran.out
        assert "MB/s" in ran.out
        assert "0:00:00" in ran.out

    def test_upload_resumes_after_an_interruption(
        self, command: Command, served: RunningServer, file: Path, tmp_path: Path
    ) -> None:
        """Ctrl-C comes while chunks are under way: the second run sends what is missing."""
        words = ["upload", "film.bin", "--chunk-size", "64k", "--json", "--parallel", "2"]
        program = begun(command, words)
        eventually(lambda: _received(served) > 3)
        program.send_signal(signal.SIGINT)
        out, err = program.communicate(timeout=HANGS)
        assert (program.returncode, out) == (130, "")
        assert "Traceback" not in err
        ran = command(*words)
        assert ran.code == 0, ran.err
        sent = json.loads(ran.out)
        assert 0 < sent["resumed_from"] < file.stat().st_size
        assert content(served, sent) == file.read_bytes()
        assert len(uploads(served)) == 1

    def test_upload_resumes_after_its_key_was_rotated(
        self, command: Command, served: RunningServer, file: Path
    ) -> None:
        """The old key ends at once; the new one has the same owner."""
        id, command.env["TOWPATH_API_KEY"] = served.make_key("submit", "read")
        words = ["upload", "film.bin", "--chunk-size", "64k", "--json", "--parallel", "2"]
        program = begun(command, words)
        eventually(lambda: _received(served) > 3)
        program.send_signal(signal.SIGINT)
        program.communicate(timeout=HANGS)
        rotated = served.client().post(f"/api/v1/keys/{id}/rotate", json={"overlap": 0})
        assert rotated.status_code == 201, rotated.text
        assert command(*words).code == 1  # the old key
        command.env["TOWPATH_API_KEY"] = rotated.json()["secret"]
        ran = command(*words)
        assert ran.code == 0, ran.err
        sent = json.loads(ran.out)
        assert 0 < sent["resumed_from"] < file.stat().st_size
        assert content(served, sent) == file.read_bytes()
        assert len(uploads(served)) == 1

    @pytest.mark.parametrize("parallel", ["1", "4"])
    def test_upload_resumes_after_connections_were_cut_in_the_middle_of_chunks(
        self, command: Command, served: RunningServer, file: Path, port: int, parallel: str
    ) -> None:
        limits = [at * MIB + 300_000 for at in (0, 1, 5, 6, 13, 18)]
        with cutting_relay(port, limits) as relay:
            command.env["TOWPATH_API_URL"] = relay.url
            words = ("--json", "--chunk-size", "256k", "--parallel", parallel)
            ran = command("upload", "film.bin", *words)
        assert ran.code == 0, ran.err
        assert relay.cuts == len(limits)
        assert content(served, json.loads(ran.out)) == file.read_bytes()

    def test_upload_resumes_after_the_server_was_killed_and_restarted(
        self, command: Command, served: RunningServer, file: Path, tmp_path: Path, port: int
    ) -> None:
        words = ["upload", "film.bin", "--chunk-size", "64k", "--json", "--parallel", "2"]
        program = begun(command, words)
        eventually(lambda: _received(served) > 3)
        served.kill()
        with up(tmp_path / "up", port) as back:
            out, err = program.communicate(timeout=HANGS)
            assert program.returncode == 0, err
            assert content(back, json.loads(out)) == file.read_bytes()
            assert len(uploads(back)) == 1


def _received(served: RunningServer) -> int:
    found = uploads(served)
    if not found:
        return 0
    return served.client().get(f"{ROOT}/{found[0]['upload_id']}").json()["received_chunks"]


class SentEnough(Exception):
    """Raised once enough bytes were sent."""


def send_first(served: RunningServer, file: Path) -> dict[str, Any]:
    """Begin the upload of the command, and send only its first chunk."""

    def told(size: int) -> None:
        if size:
            raise SentEnough

    wish, stop = SendOptions(at_once=1, chunk_size=MIB), StopSignal()
    address = ServerAddress.parse(served.address, served.key)
    with pytest.raises(SentEnough):
        Sending(address, file, file.name, wish, stop).run(told)
    stop.set()
    [found] = uploads(served)
    return found


def test_upload_waits_for_a_full_budget_and_first_sends_chunks_of_begun_parts(
    tmp_path: Path, port: int
) -> None:
    """Another owner has two parts of eight chunks, and two of this one's are begun: there is room
    for these, and not for a new one.
    """
    (file := tmp_path / "film.bin").write_bytes(random.Random(6).randbytes(40 * MIB))
    chunk = file.read_bytes()[39 * MIB :]
    room = {"TOWPATH_UPLOADS__BUDGET": str(32 * MIB), "TOWPATH_UPLOADS__OWNER_SHARE": "50"}
    with up(tmp_path / "up", port, **room) as served:
        own, other = served.client(), served.client(served.make_key("submit")[1])
        assert own.post("/api/v1/queues/uploads/pause").status_code == 204
        path = f"{ROOT}/{send_first(served, file)['upload_id']}"
        assert own.put(f"{path}/chunks/39", content=chunk).status_code == 200
        begun_there = {"name": "other", "size": 16 * MIB, "chunk_size": MIB}
        there = f"{ROOT}/{other.post(ROOT, json=begun_there).json()['upload_id']}"
        for number in range(16):
            assert other.put(f"{there}/chunks/{number}", content=chunk).status_code == 200

        refused = own.put(f"{path}/chunks/20", content=chunk)
        assert refused.status_code == 503
        assert int(refused.headers["Retry-After"]) >= 1
        assert refused.json()["missing"] == [[1, 7], [32, 38]]

        program = begun(
            command_for(served, tmp_path), ["upload", "film.bin", "--chunk-size", "1m", "--json"]
        )
        eventually(lambda: own.get(f"{path}/missing").json()["missing"] == [[8, 31]])
        assert program.poll() is None
        assert own.post("/api/v1/queues/uploads/resume").status_code == 204
        out, err = program.communicate(timeout=HANGS)
        assert program.returncode == 0, err
        assert content(served, json.loads(out)) == file.read_bytes()


class Unwaiting(StopSignal):
    """Fails a client that waits for a server."""

    def wait(self, seconds: float) -> None:
        raise AssertionError(seconds)


class TestADeadServer:
    @pytest.mark.parametrize("host", ["127.0.0.1", "[::1]", "nowhere.invalid"])
    def test_upload_fails_at_once_if_no_server_answers(
        self, tmp_path: Path, port: int, host: str
    ) -> None:
        (file := tmp_path / "f").write_text("x")
        address = ServerAddress.parse(f"http://{host}:{port}/towpath", KEY)
        with pytest.raises(UploadServerUnreachable) as refused:
            Sending(address, file, "f", SendOptions(), Unwaiting()).run(lambda _: None)
        assert f"http://{host}:{port}/towpath" in str(refused.value)
        assert KEY not in str(refused.value)

    @pytest.mark.parametrize("count", [1, 30])
    def test_an_unreachable_server_is_reported_once_for_all_files(
        self, tmp_path: Path, port: int, count: int
    ) -> None:
        for number in range(count):
            (tmp_path / f"{number}").write_text("x")
        command = Command("redis://127.0.0.1:1", tmp_path)
        command.env |= {"TOWPATH_API_URL": f"http://127.0.0.1:{port}", "TOWPATH_API_KEY": KEY}
        ran = command("upload", *map(str, range(count)), "--json")
        assert (ran.code, ran.refusal["refused"]) == (75, "upload_server_unreachable")
        assert (len(ran.err.splitlines()), ran.out) == (1, "")

    def test_an_unreachable_server_is_reported_before_standard_input_is_read(
        self, tmp_path: Path, port: int
    ) -> None:
        """The pipe is never written to or closed."""
        reader, writer = map(os.fdopen, os.pipe(), "rw")
        with reader, writer:
            command = Command("redis://127.0.0.1:1", tmp_path)
            command.env |= {"TOWPATH_API_URL": f"http://127.0.0.1:{port}", "TOWPATH_API_KEY": KEY}
            program = begun(command, ["upload", "-", "--json"], stdin=reader)
            out, err = program.communicate(timeout=HANGS)
        assert (program.returncode, out) == (75, "")
        assert json.loads(err)["refused"] == "upload_server_unreachable"

    def test_upload_waits_for_a_server_that_answered_before(
        self, tmp_path: Path, port: int
    ) -> None:
        (file := tmp_path / "f").write_text("x")
        reached = threading.Event()
        reached.set()
        address = ServerAddress.parse(f"http://127.0.0.1:{port}", KEY)
        with pytest.raises(AssertionError):
            Sending(address, file, "f", SendOptions(), Unwaiting(reached=reached)).run(print)


def test_errors_that_say_that_the_command_resumes_may_be_retried() -> None:
    found = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    kinds = [kind for kind in found if issubclass(kind, TowpathError)]
    wrong = [kind for kind in kinds if "resume" in kind.remedy and kind.retry == "never"]
    assert (len(kinds) > 5, wrong) == (True, [])


class TestARefusal:
    def test_a_refusal_has_an_exit_code_and_names_the_reason(
        self, command: Command, served: RunningServer, tmp_path: Path
    ) -> None:
        (tmp_path / "folder").mkdir()
        (tmp_path / "f").write_text("x")
        for words, code, refused, named in (
            (["folder"], 2, "not_a_file", "folder"),
            (["nobody"], 2, "file_unreadable", "nobody"),
            (["f", "--chunk-size", "x"], 2, "invalid_option", "chunk-size = 'x'"),
            (["f", "--chunk-size", "1k"], 1, "upload_server_refused", "chunk_size"),
            (["f", "f", "--name", "x"], 2, "invalid_option", "name = 'x'"),
            (["f", "--server", "ftp://x"], 2, "invalid_option", "server"),
            (["f", "--key", "tp_wrong"], 1, "upload_server_refused", "key"),
        ):
            ran = command("upload", *words, "--json")
            assert (ran.code, ran.refusal["refused"]) == (code, refused), (words, ran.err)
            assert named in ran.refusal["message"], (words, ran.err)
            assert ran.out == ""
        ran = command("upload", "f", TOWPATH_API_KEY="")
        assert (ran.code, "TOWPATH_API_KEY_FILE" in ran.err) == (2, True)

    def test_other_files_are_sent_after_the_refusal_of_one(
        self, command: Command, served: RunningServer, tmp_path: Path
    ) -> None:
        (tmp_path / "a").write_text("a")
        (tmp_path / "b\tb").write_text("b")
        ran = command("upload", "a", "b\tb", "--json")
        assert ran.code == 1
        assert [json.loads(line)["file"] for line in ran.out.splitlines()] == ["a"]
        assert "refused" in ran.err

    def test_the_refusal_of_a_key_without_read_is_the_one_of_the_server(
        self, command: Command, served: RunningServer, tmp_path: Path
    ) -> None:
        (tmp_path / "f").write_text("x")
        _, key = served.make_key("submit")
        ran = command("upload", "f", TOWPATH_API_KEY=key)
        assert (ran.code, "`read`" in ran.err) == (1, True)

    def test_upload_resumes_after_the_object_store_could_not_write(
        self, command: Command, served: RunningServer, file: Path, tmp_path: Path
    ) -> None:
        """The folder of the object store is a file at first."""
        objects = tmp_path / "up" / "data" / "uploads"
        (tmp_path / "f").write_text("first")
        assert command("upload", "f").code == 0
        objects.rename(objects.with_name("away"))
        objects.write_text("")
        ran = command("upload", "film.bin", "--json")
        assert (ran.code, ran.refusal["refused"]) == (75, "file_not_stored")
        assert ran.refusal["retry"] == "later"
        objects.unlink()
        objects.with_name("away").rename(objects)
        ran = command("upload", "film.bin", "--json")
        assert ran.code == 0, ran.err
        assert content(served, json.loads(ran.out)) == file.read_bytes()
