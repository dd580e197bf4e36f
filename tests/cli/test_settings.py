"""Settings: which source decides, what is refused, what stays hidden."""

import re
from pathlib import Path

import pytest

from towpath import seconds
from towpath.cli.config import shown_of
from towpath.errors import InvalidOption
from towpath.settings import Settings, load
from towpath.settings.sources import Origin

pytestmark = pytest.mark.usefixtures("no_settings")

CANARY = "canary-8f2e"


def shown(settings: Settings, name: str) -> str:
    """A value in the output of `towpath config`."""
    return next(shown_of(settings, leaf) for leaf in settings.leaves() if leaf.name == name)


class TestPrecedence:
    def test_of_flags_is_higher_than_of_variables_the_file_and_defaults(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Leaf by leaf: one source does not hide the rest of another."""
        Path("towpath.toml").write_text(
            'timeout = "1s"\n[worker]\ngrace = "1s"\nlease = "9s"\nconcurrency = 1\n'
        )
        monkeypatch.setenv("TOWPATH_WORKER__GRACE", "2s")
        monkeypatch.setenv("TOWPATH_WORKER__CONCURRENCY", "2")
        flags = {"worker": {"concurrency": 3}}

        settings = load(flags)

        assert settings.worker.concurrency == 3
        assert settings.worker.grace == seconds(2)
        assert settings.worker.lease == seconds(9)
        assert settings.timeout == seconds(1)
        assert settings.origin("worker.concurrency") == Origin("flag", "--concurrency")
        assert settings.origin("worker.grace") == Origin("variable", "TOWPATH_WORKER__GRACE")
        assert settings.origin("worker.lease") == Origin("file", "towpath.toml")
        assert settings.origin("log.format") == Origin("default", "")

    def test_pyproject_has_a_table_for_them(self) -> None:
        Path("pyproject.toml").write_text('[tool.towpath]\nurl = "redis://queue.example"\n')
        assert load().shown == "redis://queue.example:6379/0"
        Path("towpath.toml").write_text('url = "redis://own.example"\n')
        assert load().shown == "redis://own.example:6379/0"

    def test_a_file_can_be_named(self) -> None:
        Path("other.toml").write_text('timeout = "7s"\n')
        assert load({"config": Path("other.toml")}).timeout == seconds(7)
        with pytest.raises(InvalidOption) as refusal:
            load({"config": Path("nowhere.toml")})
        assert (refusal.value.option, refusal.value.value) == ("config", "nowhere.toml")

    def test_redis_url_is_used_unless_towpath_url_is_set(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("REDIS_URL", "redis://plain.example")
        assert load().shown == "redis://plain.example:6379/0"
        assert load().origin("url") == Origin("variable", "REDIS_URL")
        monkeypatch.setenv("TOWPATH_URL", "redis://ours.example")
        assert load().shown == "redis://ours.example:6379/0"

    def test_an_empty_variable_is_ignored(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("TOWPATH_URL", "")
        monkeypatch.setenv("REDIS_URL", "redis://plain.example")
        assert load().shown == "redis://plain.example:6379/0"

    def test_queues_have_weights(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("TOWPATH_WORKER__QUEUES", "mails, reports=3")
        settings = load()
        assert settings.worker.queues == {"mails": 0, "reports": 3}
        assert shown(settings, "worker.queues") == "mails,reports=3"


class TestSecrets:
    def test_come_from_files_that_variables_name(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        secret = tmp_path / "secret"
        secret.write_text(f"{CANARY}/@\n")
        monkeypatch.setenv("TOWPATH_PASSWORD_FILE", str(secret))
        settings = load({"url": "redis://anna@queue.example/2"})
        assert settings.address.username == "anna"
        assert settings.address.password == f"{CANARY}/@"
        assert settings.address.db == 2
        assert load().origin("password") == Origin("variable", "TOWPATH_PASSWORD_FILE")

    def test_are_not_shown(self) -> None:
        settings = load({"url": f"redis://anna:{CANARY}@queue.example", "password": CANARY})
        told = [shown(settings, name) for name in ("url", "password")]
        assert told == ["redis://queue.example:6379/0", "(hidden)"]
        assert CANARY not in repr(settings) + str(settings)

    def test_are_not_repeated_by_a_refusal(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name, value in (
            ("TOWPATH_URL", f"{CANARY}://x"),
            ("TOWPATH_PASSWROD", CANARY),
            ("REDIS_URL", f"redis://h:{CANARY}"),
        ):
            monkeypatch.setenv(name, value)
            with pytest.raises(InvalidOption) as refusal:
                load()
            assert CANARY not in str(refusal.value)
            monkeypatch.delenv(name)
        for line in (f'passwrod = "{CANARY}"', f'password = ["{CANARY}"]'):
            Path("towpath.toml").write_text(line)
            with pytest.raises(InvalidOption) as refusal:
                load()
            assert CANARY not in str(refusal.value)

    def test_in_two_places_are_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("TOWPATH_URL", "redis://a")
        monkeypatch.setenv("TOWPATH_URL_FILE", "b")
        with pytest.raises(InvalidOption, match=r"\bTOWPATH_URL\b") as refusal:
            load()
        assert refusal.value.option == "TOWPATH_URL_FILE"


class TestARefusedSetting:
    @pytest.mark.parametrize(
        ("variable", "value", "option"),
        [
            ("TOWPATH_WORKER__GRACE", "30", "worker.grace"),
            ("TOWPATH_WORKER__CONCURRENCY", "0", "worker.concurrency"),
            ("TOWPATH_WORKER__QUEUES", "Mails", "worker.queues"),
            ("TOWPATH_WORKER__QUEUES", "mails=lots", "worker.queues"),
            ("TOWPATH_WORKER__QUEUES", "mails=0", "worker.queues"),
            ("TOWPATH_WORKER__NAME", "a\nb", "worker.name"),
            ("TOWPATH_LOG__FORMAT", "xml", "log.format"),
            ("TOWPATH_DURABILITY", "forever", "durability"),
            ("TOWPATH_PASSWORD_FILE", "/nowhere", "TOWPATH_PASSWORD_FILE"),
        ],
    )
    def test_is_named_with_its_value(
        self, variable: str, value: str, option: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv(variable, value)
        with pytest.raises(InvalidOption) as refusal:
            load()
        assert (refusal.value.option, refusal.value.value) == (option, value)

    @pytest.mark.parametrize(
        ("variable", "near"),
        [
            ("TOWPATH_URLL", "TOWPATH_URL"),
            ("TOWPATH_WORKER__GRAZE", "TOWPATH_WORKER__GRACE"),
            ("TOWPATH_WORKER", "TOWPATH_WORKER__NAME"),
        ],
    )
    def test_that_is_unknown_is_shown_with_the_nearest_name(
        self, variable: str, near: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv(variable, "1s")
        with pytest.raises(InvalidOption) as refusal:
            load()
        assert refusal.value.option == variable
        assert re.search(rf"\b{near}\b", refusal.value.rule)

    @pytest.mark.parametrize(
        ("text", "option", "value", "named"),
        [
            ("timeuot = '1s'", "timeuot", "…", "timeout"),
            ("[worker]\ncolour = 'red'", "worker.colour", "…", "worker.concurrency"),
            ("worker = 3", "worker", "…", "[worker]"),
            ("timeout = 3", "timeout", 3, ""),
            ("timeout = ", "config", "towpath.toml", "TOML"),
        ],
    )
    def test_of_a_file_is_named_with_its_value(
        self, text: str, option: str, value: object, named: str
    ) -> None:
        Path("towpath.toml").write_text(text)
        with pytest.raises(InvalidOption) as refusal:
            load()
        assert (refusal.value.option, refusal.value.value) == (option, value)
        assert named in refusal.value.rule

    def test_is_no_variable_that_an_orchestrator_sets_for_a_service(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name in ("TOWPATH_SERVICE_HOST", "TOWPATH_PORT", "TOWPATH_PORT_6379_TCP_ADDR"):
            monkeypatch.setenv(name, "tcp://10.0.0.1:6379")
        assert load().shown == "redis://localhost:6379/0"
