"""Handlers of many modules in one app, and an app that takes the address of Redis from the
settings.
"""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.worker.in_process_worker import SOON, working
from towpath.app.app import Towpath
from towpath.app.handlers import Handlers
from towpath.clock import seconds
from towpath.embedded import EmbeddedServer
from towpath.engine.channel import Limits
from towpath.engine.engine import Engine
from towpath.errors import HandlerInvalid, InvalidOption
from towpath.ledger.errors import LedgerMissing
from towpath.ledger.ledger import Ledger
from towpath.settings import load_core


class TestHandlersOfAModule:
    async def test_become_handlers_of_the_app_that_includes_them(self, app: Towpath) -> None:
        mails = Handlers()

        @mails.handler("mails")
        async def send(to: str) -> str:
            return f"to {to}"

        @mails.recurring("0 3 * * *")
        async def clean_up() -> None: ...

        with pytest.raises(HandlerInvalid, match=r"app\.include"):
            await send.submit("anna")
        app.include(mails)
        app.include(mails)  # without effect
        assert list(app.handlers) == [send, clean_up]
        assert [schedule.name for schedule in app.declared_schedules] == ["clean_up"]
        async with working(app):
            assert await (await send.submit("anna")).result(within=SOON) == "to anna"

            @mails.handler("more")
            async def more() -> int:
                return 7

            assert await (await more.submit()).result(within=SOON) == 7
        app.remove(send)
        assert send not in mails.handlers

    def test_are_all_refused_if_one_name_is_taken(self) -> None:
        app, mails = Towpath("redis://nowhere"), Handlers()

        @app.handler("mails")
        async def send() -> None: ...

        @mails.handler("other")
        async def other() -> None: ...

        @mails.handler("mails")
        async def send_too() -> None: ...

        with pytest.raises(HandlerInvalid) as refusal:
            app.include(mails)
        assert refusal.value.handler == "send_too"
        assert list(app.handlers) == [send]
        assert mails.included_in is None

    def test_that_belong_to_another_app_are_refused(self) -> None:
        mails, first, second = Handlers(), Towpath("redis://a"), Towpath("redis://b")
        first.include(mails)
        for wrong in (mails, first, second):
            with pytest.raises(HandlerInvalid) as refusal:
                second.include(wrong)
            assert refusal.value.handler == "handlers"
        assert mails.included_in is first

    def test_with_a_record_need_a_ledger(self) -> None:
        mails = Handlers()

        @mails.handler("mails", record=True)
        async def send() -> None: ...

        with pytest.raises(LedgerMissing):
            Towpath("redis://nowhere").include(mails)


def limits_of(app: Towpath) -> Limits:
    """How long the app's engines wait for Redis."""
    given: list[Limits] = []

    def make(url: str, *, limits: Limits | None, **options: Any) -> Engine:
        given.append(limits or Limits())
        return Engine(url, limits=limits, **options)

    with app.pointed_at(app.url, engine=make):
        app.new_engine()
    return given[0]


class TestAnAppWithoutAnAddress:
    async def test_takes_its_address_from_the_settings(
        self, server: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        monkeypatch.delenv("TOWPATH_URL", raising=False)
        app = Towpath()

        @app.handler("mails")
        async def send() -> None: ...

        monkeypatch.setenv("REDIS_URL", server.url)
        async with app:
            assert await (await send.submit()).state() == "ready"
        assert app.url == server.url
        monkeypatch.delenv("REDIS_URL")
        assert Towpath().url == "redis://localhost:6379"
        (tmp_path / "towpath.toml").write_text('url = "redis://file"\n[reviews]\nqueue = "x"\n')
        assert Towpath().url == "redis://file"
        assert Towpath("redis://given").url == "redis://given"

    def test_waits_for_redis_as_long_as_the_settings_say(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        assert limits_of(Towpath()) == Limits()
        monkeypatch.setenv("TOWPATH_SUBMIT_TIMEOUT", "2s")
        assert limits_of(Towpath()) == Limits(answer=seconds(2), give_up=seconds(2))
        assert limits_of(Towpath(submit_timeout="9s")) == Limits(give_up=seconds(9))
        assert limits_of(Towpath(limits=Limits(channels=2))) == Limits(channels=2)
        assert limits_of(Towpath("redis://given")) == Limits()
        in_worker = Towpath(submit_timeout="9s")
        in_worker.use(load_core())
        assert limits_of(in_worker) == Limits()

    @pytest.mark.parametrize("timeout", ["0s", "1h"])
    def test_refuses_a_timeout_in_the_settings_that_is_no_duration(
        self, timeout: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        with pytest.raises(InvalidOption) as refusal:
            Towpath("redis://given", submit_timeout=timeout)
        assert refusal.value.option == "submit_timeout"
        monkeypatch.setenv("TOWPATH_SUBMIT_TIMEOUT", timeout)
        with pytest.raises(InvalidOption) as refusal:
            _ = Towpath().url
        assert refusal.value.option == "submit_timeout"

    async def test_refuses_a_setting_that_is_no_redis_address(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("REDIS_URL", "http://nowhere")
        app = Towpath()
        with pytest.raises(InvalidOption) as refusal:
            async with app:
                pass
        assert refusal.value.option == "url"

    async def test_keeps_its_records_in_the_database_of_the_settings(
        self, server: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        monkeypatch.delenv("TOWPATH_DATABASE", raising=False)
        monkeypatch.delenv("DATABASE_URL", raising=False)
        app = Towpath()

        @app.handler("mails", record=True)
        async def send(number: int) -> int:
            return number

        (tmp_path / "towpath.toml").write_text(
            f'url = "{server.url}"\ndatabase = "sqlite:///{tmp_path}/shop.db"\n'
        )
        async with Ledger(f"sqlite:///{tmp_path}/shop.db") as ledger:
            await ledger.migrate()
            async with app:
                job = await send.submit(1)
                assert (await ledger.jobs.get("mails", job.id)).state == "pending"
            assert await asyncio.to_thread(send.blocking.job(job.id).state) == "ready"

    async def test_opens_no_database_without_records(
        self, server: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("REDIS_URL", server.url)
        monkeypatch.setenv("DATABASE_URL", "mysql://of.another.program")
        app = Towpath()

        @app.handler("mails")
        async def send() -> None: ...

        async with app:
            assert await (await send.submit()).state() == "ready"
        assert not app.keeps_records

    async def test_needs_a_database_for_records(
        self, server: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("REDIS_URL", server.url)
        monkeypatch.delenv("TOWPATH_DATABASE", raising=False)
        monkeypatch.delenv("DATABASE_URL", raising=False)
        app = Towpath()

        @app.handler("mails", record=True)
        async def send() -> None: ...

        with pytest.raises(LedgerMissing):
            async with app:
                pass
        with pytest.raises(LedgerMissing):
            await asyncio.to_thread(send.blocking.submit)
