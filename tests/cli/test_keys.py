"""`towpath keys` and `towpath migrate`, on a database of their own."""

import asyncio
import re

import pytest

from tests.architecture.sources import ROOT
from tests.cli.command import Command, ProgramResult
from tests.cli.test_howto import BLOCK, run
from towpath.ledger.database.schema import SCHEMA
from towpath.ledger.ledger import Ledger

PAGE = ROOT / "docs" / "how-to" / "manage-api-keys.md"
SECRET = re.compile(r"tp_([a-z0-9]{10})_[\w-]{43}", re.ASCII)


@pytest.fixture
def keys(towpath: Command, prepared_file_url: str) -> Command:
    """The command, with a migrated database."""
    towpath.env["DATABASE_URL"] = prepared_file_url
    return towpath


async def migrated(url: str) -> None:
    async with Ledger(url) as ledger:
        await ledger.migrate()


def made(ran: ProgramResult) -> str:
    """The id of the key that was just made; stdout has only its secret."""
    found = SECRET.fullmatch(ran.out.strip())
    assert found, ran
    return found[1]


class TestMigrate:
    def test_creates_the_schema_and_reports_it(self, towpath: Command) -> None:
        where = f"sqlite:///{towpath.directory}/ledger.db"
        first = towpath("migrate", "--database", where)
        assert first.code == 0, first.err
        [line] = [line for line in first.out.splitlines() if line.startswith(f"{where}  ledger ")]
        assert line.endswith(f" {SCHEMA}")
        again = towpath("migrate", "--json", DATABASE_URL=where)
        told = {"database": where, "line": "ledger", "before": SCHEMA, "after": SCHEMA}
        assert told in again.objects

    def test_needs_the_url_of_a_database(self, towpath: Command) -> None:
        ran = towpath("migrate", "--json")
        assert ran.code == 2
        assert "DATABASE_URL" in ran.refusal["message"]

    def test_reports_an_unreachable_database(self, towpath: Command) -> None:
        where = f"postgresql://anna:canary@/jobs?host={towpath.directory}"
        ran = towpath("migrate", "--json", DATABASE_URL=where)
        assert (ran.code, ran.refusal["refused"]) == (75, "ledger_unreachable")
        assert "canary" not in ran.out + ran.err


class TestKeys:
    def test_need_an_up_to_date_schema(self, towpath: Command) -> None:
        ran = towpath("keys", "list", "--database", f"sqlite:///{towpath.directory}/x.db", "--json")
        assert (ran.code, ran.refusal["refused"]) == (1, "ledger_absent")
        assert "`towpath migrate`" in ran.refusal["do"]

    def test_create_shows_the_secret_and_nothing_else(self, keys: Command) -> None:
        id = made(keys("keys", "create", "shop", "--scope", "submit", "-q", "mails*"))
        [told] = keys("keys", "list", "--json").objects
        assert told["key"] == id
        assert (told["name"], told["state"]) == ("shop", "live")
        assert (told["scopes"], told["queues"]) == (["submit"], ["mails*"])

    def test_create_takes_several_scopes_and_an_expiry(self, keys: Command) -> None:
        words = ("--scope", "work", "--scope", "read", "--expires", "90d", "--json")
        told = keys("keys", "create", "build-3", *words).object
        assert told["scopes"] == ["read", "work"]
        assert told["expires_at"] > told["created_at"]
        assert SECRET.fullmatch(told["secret"])

    def test_create_is_refused_with_invalid_options(self, keys: Command) -> None:
        for words in (
            ("shop",),
            ("shop", "--scope", "root"),
            ("shop", "--scope", "read", "--queue", "UPPER"),
            ("shop", "--scope", "read", "--expires", "soon"),
        ):
            assert keys("keys", "create", *words).code == 2
        assert keys("keys", "list", "--json").objects == []

    def test_are_those_of_the_data_directory_if_no_database_is_named(
        self, towpath: Command
    ) -> None:
        """What `towpath up` has made is found without more words."""
        data = towpath.directory / "towpath-data"
        data.mkdir()
        asyncio.run(migrated(f"sqlite:///{data}/towpath.db"))
        assert towpath("keys", "list", "--json").objects == []
        elsewhere = towpath("keys", "list", TOWPATH_DATA=str(towpath.directory / "elsewhere"))
        assert elsewhere.code == 2

    def test_list_is_a_table_for_people(self, keys: Command) -> None:
        empty = keys("keys", "list")
        assert (empty.code, empty.out) == (0, "")
        secret = keys("keys", "create", "shop", "--scope", "admin").out.strip()
        table = keys("keys", "list").out
        assert table.split()[:3] == ["KEY", "NAME", "STATE"]
        assert "live" in table
        assert secret.split("_", 2)[2] not in table

    def test_create_takes_an_owner_and_every_scope(self, keys: Command) -> None:
        scopes = ("read", "submit", "work", "manage", "raw")
        words = [word for scope in scopes for word in ("--scope", scope)]
        told = keys("keys", "create", "shop", *words, "--owner", "the shop", "--json").object
        assert (told["owner"], told["scopes"]) == ("the shop", sorted(scopes))
        own = keys("keys", "create", "shop", "--scope", "read", "--json").object
        assert own["owner"] == own["key"]
        assert "the shop" in keys("keys", "list").out

    @pytest.mark.parametrize("owner", ["", "  ", "a\nb", "x" * 101])
    def test_create_refuses_an_invalid_owner(self, keys: Command, owner: str) -> None:
        assert keys("keys", "create", "shop", "--scope", "read", "--owner", owner).code == 2

    def test_rotate_replaces_a_key_by_one_of_the_same_owner(self, keys: Command) -> None:
        words = ("shop", "--scope", "submit", "-q", "mails*", "--expires", "90d")
        old = made(keys("keys", "create", *words))
        new = made(keys("keys", "rotate", old, "--overlap", "2h"))
        before, after = keys("keys", "list", "--json").objects
        same = ("name", "scopes", "queues", "owner")
        assert [before[name] for name in same] == [after[name] for name in same]
        assert (before["key"], after["key"], after["owner"]) == (old, new, old)
        assert before["expires_at"] < after["expires_at"]

    def test_rotate_without_an_overlap_ends_the_old_key(self, keys: Command) -> None:
        old = made(keys("keys", "create", "shop", "--scope", "submit"))
        told = keys("keys", "rotate", old, "--overlap", "0s", "--json").object
        assert SECRET.fullmatch(told["secret"])
        states = {key["key"]: key["state"] for key in keys("keys", "list", "--json").objects}
        assert states == {old: "revoked", told["key"]: "live"}

    def test_rotate_refuses_an_unknown_or_ended_key(self, keys: Command) -> None:
        ran = keys("keys", "rotate", "nowhere", "--json")
        assert (ran.code, ran.refusal["refused"]) == (5, "key_not_found")
        id = made(keys("keys", "create", "shop", "--scope", "submit"))
        keys("keys", "revoke", id)
        ran = keys("keys", "rotate", id, "--json")
        assert (ran.code, ran.refusal["refused"]) == (4, "key_ended")
        assert keys("keys", "rotate", id, "--overlap", "soon").code == 2

    def test_revoke_ends_a_key(self, keys: Command) -> None:
        id = made(keys("keys", "create", "shop", "--scope", "submit"))
        assert keys("keys", "revoke", id).out == f"{id}  shop  revoked\n"
        [told] = keys("keys", "list", "--json").objects
        assert told["state"] == "revoked"
        assert told["revoked_at"]

    def test_revoke_refuses_an_unknown_key(self, keys: Command) -> None:
        ran = keys("keys", "revoke", "nowhere", "--json")
        assert (ran.code, ran.refusal["refused"]) == (5, "key_not_found")


def test_the_commands_of_the_page_run(towpath: Command) -> None:
    blocks = "".join(BLOCK.findall(PAGE.read_text()))
    commands = [line.removeprefix("$ ") for line in blocks.splitlines() if line.startswith("$ ")]
    assert len(commands) > 6
    run(towpath, commands)
