"""`towpath up`: one command, everything in one directory, and never a job lost."""

import json
import os
import pty
import re
import secrets
import signal
import socket
import subprocess
from pathlib import Path

import httpx
import pytest

from tests.programs import COMMAND, Bounded
from tests.server.serving import Api, RunningServer, begin, serve, serving, up
from tests.server.test_work_api import in_background
from tests.waiting import HANGS, eventually
from towpath.embedded import EmbeddedServer

CANARY = "canary-7f3a-in-a-payload"


def is_ready(address: str) -> bool:
    try:
        return httpx.get(f"{address}/readyz", timeout=HANGS).status_code == 200
    except httpx.TransportError:
        return False


class TestTheFirstOutput:
    def test_has_the_address_the_data_directory_and_a_working_key(
        self, running: RunningServer
    ) -> None:
        assert set(running.said) == {"address", "data", "store", "api_key_file", "login_file"}
        assert running.address.startswith("http://127.0.0.1:")
        assert Path(running.said["data"]).is_dir()
        assert running.key.startswith("tp_")
        assert running.client().get("/api/v1/queues").status_code == 200

    def test_outside_a_terminal_names_private_files_instead_of_secrets(
        self, tmp_path: Path
    ) -> None:
        """What goes to a pipe is often kept in a log that others read."""
        with up(tmp_path) as served:
            key, link = Path(served.said["api_key_file"]), Path(served.said["login_file"])
            assert {key.parent, link.parent} == {tmp_path / "data"}
            assert {key.stat().st_mode & 0o777, link.stat().st_mode & 0o777} == {0o600}
            assert key.read_text().startswith("tp_")
            token = httpx.URL(link.read_text().strip()).params["login"]
            assert served.client(key="").post("/", data={"link": token}).status_code == 303
            for told in (json.dumps(served.said), served.log.read_text()):
                assert "tp_" not in told
                assert token not in told
        with up(tmp_path) as served:
            assert served.said["api_key_file"] == str(key)  # it is still the first key
            assert served.client().get("/api/v1/queues").status_code == 200
            assert token not in link.read_text()
        key.unlink()
        with up(tmp_path) as served:
            assert "api_key_file" not in served.said
            assert not key.exists()

    def test_comes_after_the_files_which_are_there_once_the_server_is_ready(
        self, tmp_path: Path
    ) -> None:
        """A script that waits for `/readyz` finds the first key, and a login link of this start."""
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        key, link = tmp_path / "data" / "api.key", tmp_path / "data" / "login.link"
        address, links = f"http://127.0.0.1:{port}", set[str]()
        for _ in range(2):
            process = begin("up", "--data", str(tmp_path / "data"), log=tmp_path / "log", port=port)
            try:
                eventually(lambda: is_ready(address))
                secret, login = key.read_text().strip(), link.read_text().strip()
                asked = httpx.get(f"{address}/api/v1/queues", headers={"X-API-Key": secret})
                assert asked.status_code == 200
                assert login.startswith(f"{address}/?login=")
                links.add(login)
            finally:
                RunningServer(process, {}, "", tmp_path / "log").end()
        assert len(links) == 2

    @pytest.mark.parametrize("words", [(), ("--json",)])
    def test_in_a_terminal_has_the_key_and_the_link(
        self, tmp_path: Path, words: tuple[str, ...]
    ) -> None:
        ours, theirs = pty.openpty()
        process = Bounded[bytes](
            [COMMAND, "up", "--port", "0", "--data", "data", *words],
            stdin=subprocess.DEVNULL,
            stdout=theirs,
            stderr=subprocess.DEVNULL,
            cwd=tmp_path,
        )
        os.close(theirs)
        told = b""
        try:
            while not re.search(rb"tp_[a-z0-9]{10}_[\w-]{43}", told) or b"/?login=" not in told:
                told += os.read(ours, 4096)  # fails when the process has ended
        finally:
            process.terminate()
            process.wait(HANGS)
            os.close(ours)
        assert not (tmp_path / "data" / "api.key").exists()
        assert not (tmp_path / "data" / "login.link").exists()

    def test_for_people_names_three_commands_that_run(self, tmp_path: Path) -> None:
        told = tmp_path / "told"
        with told.open("w") as file:
            process = Bounded[str](
                [COMMAND, "up", "--port", "0", "--data", "data"],
                stdout=file,
                stderr=file,
                text=True,
                cwd=tmp_path,
                env={**os.environ, "TOWPATH_REVIEWS__GITHUB_SECRETS": CANARY},
            )
        try:
            eventually(lambda: '{"worker": "me"}\'\n\n' in told.read_text())
            facts, _, rest = told.read_text().partition("try ")
            script, _, _ = rest.partition("\n\n")
            for fact in ("serving", "data", "api key", "api.key", "login.link", "PENDING"):
                assert fact in facts
            assert "/api/v1/webhooks/github\n" in facts
            assert "canary" not in facts
            assert "tp_" not in told.read_text()
            ran = subprocess.run(["sh", "-ec", script], capture_output=True, text=True, check=True)
            assert '"ready":true' in ran.stdout
            assert '"existed":false' in ran.stdout
            assert '"payload":"hello"' in ran.stdout
        finally:
            process.terminate()
            process.wait(HANGS)


class TestStopping:
    def test_lets_requests_finish_and_the_next_start_has_all_jobs(self, tmp_path: Path) -> None:
        """Who waits for work is answered, streams end, what is leased stays leased."""
        with up(tmp_path) as served:
            key, api = served.key, served.api("mails")
            api.submit("hello", id="a")
            [job] = api.claim(lease=600)
            ended_politely(served)
            assert served.process.wait(HANGS) == 0
            assert served.events()[-1]["event"] == "http.stopped"
        with up(tmp_path) as served:
            assert served.key == key
            api = served.api("mails", key)
            assert api.look("a")["state"] == "leased"
            assert api.say("complete", job).json()["state"] == "done"

    def test_by_a_crash_loses_nothing_for_the_next_start(self, tmp_path: Path) -> None:
        with up(tmp_path) as served:
            key, api = served.key, served.api("mails")
            for n in range(20):
                api.submit(n, id=f"j{n}")
            [job] = api.claim(lease=600)
            served.kill()
        with up(tmp_path) as served:
            api = served.api("mails", key)
            assert api.get().json()["ready"] == 19
            assert api.say("complete", job).json()["state"] == "done"
            assert [j["payload"] for j in api.claim(count=100)] == list(range(1, 20))


def ended_politely(served: RunningServer) -> None:
    """Sends SIGTERM while two claims wait and one client follows a queue: all get complete
    answers.
    """
    plain, named, follower = served.api("news"), served.api("named"), served.client()
    wish = {"worker": "w", "wait": 60}
    with (
        in_background(lambda: plain.post("/claim", wish)) as one,
        in_background(lambda: named.post("/claim", wish, idempotency_key="k")) as two,
        follower.stream("GET", f"{plain.root}/events") as stream,
    ):
        eventually(lambda: served.asked_for("news") and served.asked_for("named"))
        served.process.send_signal(signal.SIGTERM)
        assert [one().status_code, two().status_code] == [204, 204]
        stream.read()


class TestStarting:
    def test_uses_the_database_of_the_settings(self, tmp_path: Path) -> None:
        """Apps and commands in the same shell use it too."""
        url = f"sqlite:///{tmp_path}/own.db"
        words, log = ("up", "--data", str(tmp_path / "data")), tmp_path / "log"
        with serving(*words, database=url, log=log, env={"TOWPATH_DATABASE": url}) as served:
            assert served.said["database"] == url
            _, secret = served.make_key("read")
            assert served.client(secret).get("/api/v1/queues").status_code == 200
        assert not (tmp_path / "data" / "towpath.db").exists()

    def test_a_second_server_on_the_same_data_is_refused(
        self, running: RunningServer, tmp_path: Path
    ) -> None:
        with begin("up", "--data", running.said["data"], log=tmp_path / "log") as ended:
            assert ended.communicate(timeout=HANGS)[0] == ""
        assert ended.returncode == 1
        told = json.loads((tmp_path / "log").read_text().splitlines()[-1])
        assert told["refused"] == "data_directory_in_use"
        processes = {str(running.process.pid), str(valkey_of(running))}
        assert processes <= set(re.findall(r"\d+", told["message"]))
        assert running.client().get("/readyz").status_code == 200

    def test_on_a_port_that_is_taken_is_refused_and_leaves_nothing(self, tmp_path: Path) -> None:
        """It is refused before a Valkey is started, or a directory or a key is made."""
        with socket.create_server(("127.0.0.1", 0)) as other:
            port = str(other.getsockname()[1])
            ran = subprocess.run(
                [COMMAND, "up", "--data", "data", "--port", port, "--json"],
                capture_output=True,
                text=True,
                check=False,
                cwd=tmp_path,
                timeout=HANGS,
            )
        assert ran.stdout == ""
        told = json.loads(ran.stderr.splitlines()[-1])
        assert told["refused"] == "port_taken"
        assert "--port" in told["do"]
        assert not (tmp_path / "data").exists()
        with up(tmp_path) as served:
            assert served.said["api_key_file"]

    def test_valkey_is_repeated_until_it_works(self, tmp_path: Path) -> None:
        """Whatever is in the way: a disk that is full, a file that can't be written."""
        with up(tmp_path) as served:
            served.api("mails").submit("hello", id="a")
            config = tmp_path / "data" / "valkey" / "server.conf"
            config.unlink()
            config.mkdir()
            os.kill(valkey_of(served), signal.SIGKILL)

            def said(event: str) -> int:
                return sum(line["event"] == event for line in served.events())

            eventually(lambda: said("store.down"))
            told = served.client(key="").get("/readyz").json()
            assert told["parts"]["store"]["ok"] is False
            config.rmdir()
            eventually(lambda: served.client(key="").get("/readyz").status_code == 200)
            assert said("store.restarted") == 1
            assert served.api("mails").look("a")["state"] == "ready"

    def test_in_a_readable_directory_makes_its_files_private(self, tmp_path: Path) -> None:
        """Nobody else reads its database, also not one that an older Towpath left open."""
        data = tmp_path / "data"
        data.mkdir(mode=0o755)
        (data / "towpath.db").touch(mode=0o644)
        with up(tmp_path):
            modes = {path.name: path.stat().st_mode & 0o077 for path in data.iterdir()}
        assert set(modes.values()) == {0}, modes

    def test_with_an_own_key_shows_none_and_restarts_a_valkey_that_dies(
        self, tmp_path: Path
    ) -> None:
        with up(tmp_path, TOWPATH_API_KEY=secrets.token_hex(16)) as served:
            assert "api_key_file" not in served.said
            assert served.client(key="").get("/api/v1/queues").status_code == 401
            api = served.api("mails")
            api.submit(1, id="a")
            os.kill(valkey_of(served), signal.SIGKILL)
            eventually(lambda: "store.restarted" in served.log.read_text())
            eventually(lambda: api.get("/jobs/a").status_code == 200)

    def test_with_the_setting_objects_starts_an_object_store(self, tmp_path: Path) -> None:
        with up(tmp_path, TOWPATH_OBJECTS="true") as served:
            assert httpx.get(f"{served.said['objects']}/bucket/object").status_code == 403
            keys = json.loads((tmp_path / "data" / "objects" / "s3.json").read_text())
            assert keys["identities"][0]["credentials"][0]["secretKey"] not in str(served.said)
            assert served.client().get("/readyz").status_code == 200


def valkey_of(served: RunningServer) -> int:
    children = Path(f"/proc/{served.process.pid}/task").glob("*/children")
    [pid] = {int(pid) for path in children for pid in path.read_text().split()}
    return pid


class TestServing:
    def test_needs_a_database(self, tmp_path: Path, server: EmbeddedServer) -> None:
        with begin("serve", "--url", server.url, log=tmp_path / "log") as process:
            process.communicate(timeout=HANGS)
        told = json.loads((tmp_path / "log").read_text().splitlines()[-1])
        assert (told["refused"], process.returncode) == ("invalid_option", 2)

    def test_without_a_key_shows_the_reviewer_and_the_command_for_a_key(
        self, tmp_path: Path, server: EmbeddedServer
    ) -> None:
        told = tmp_path / "told"
        words = ("serve", "--url", server.url, "--database", f"sqlite:///{tmp_path}/l.db")
        reviewer = {"TOWPATH_REVIEWS__REVIEWER_COMMAND": f"true {CANARY}"}
        with told.open("w") as file:
            process = Bounded[str](
                [COMMAND, *words, "--port", "0"], stdout=file, env={**os.environ, **reviewer}
            )
        try:
            eventually(lambda: "api key" in told.read_text() or process.poll() is not None)
        finally:
            process.terminate()
            process.wait(HANGS)
        facts = told.read_text()
        assert " true\n" in facts
        assert "`towpath keys create NAME --scope admin`" in facts
        assert "webhooks" not in facts

    def test_on_a_public_address_without_a_key_is_refused(
        self, tmp_path: Path, server: EmbeddedServer
    ) -> None:
        words = ("serve", "--url", server.url, "--database", f"sqlite:///{tmp_path}/l.db")
        with begin(*words, "--host", "::", log=tmp_path / "log") as process:
            process.communicate(timeout=HANGS)
        told = json.loads((tmp_path / "log").read_text().splitlines()[-1])
        assert (told["refused"], process.returncode) == ("invalid_option", 2)
        assert all(fact in told["message"] for fact in ("host = '::'", "--scope admin"))

    def test_with_several_servers_shares_the_jobs(
        self, tmp_path: Path, server: EmbeddedServer
    ) -> None:
        with serve(tmp_path, server.url) as one:
            words = ("serve", "--url", server.url, "--database", one.database)
            with serving(*words, database=one.database, log=tmp_path / "other") as two:
                two.own_key = one.key
                one.api("mails").submit("hello", id="a")
                [job] = two.api("mails").claim()
                assert one.api("mails").say("complete", job).json()["state"] == "done"


def test_no_secret_is_in_the_log(tmp_path: Path, server: EmbeddedServer) -> None:
    """The log level is the most detailed one. It has no keys, wrong keys, payloads, results or
    reasons, even for refusals.
    """
    key, wrong = "canary-key-g7vx2q9rt4bz8wnd", "canary-wrong-0123456789abcdef"
    with serve(tmp_path, server.url, TOWPATH_API_KEY=key, TOWPATH_LOG__LEVEL="debug") as served:
        api = served.api("mails")
        with api.client.stream("GET", f"{api.root}/events"):
            everything(api)
        assert served.client(wrong).get("/api/v1/queues").status_code == 401
        served.client().get(f"/api/v1/queues?api_key={CANARY}")
        served.stop()
        text = served.log.read_text()
    assert "http.started" in text
    assert "canary" not in text


def everything(api: Api) -> None:
    api.submit({"secret": CANARY}, id="a", headers={"trace": CANARY})
    [job] = api.claim()
    api.say("renew", job, progress=CANARY)
    api.say("complete", job, result=CANARY)
    api.bury("b", reason=CANARY)
    api.post("/jobs", {"payload": CANARY, "priority": CANARY})
    api.post("/jobs", {"payload": CANARY, "id": f"{CANARY}\n"})
    a_message_is_answered(Api(api.client, "messages"))


def a_message_is_answered(api: Api) -> None:
    message = {"user_id": "u", "org_id": "o", "client_id": "c", "message": CANARY}
    id = api.client.post("/api/v1/message", json=message).json()["message_id"]
    with api.client.stream("GET", f"/api/v1/message/{id}/events") as stream:
        [job] = api.claim()
        api.say("complete", job, result=CANARY)
        assert CANARY in "".join(stream.iter_text())
