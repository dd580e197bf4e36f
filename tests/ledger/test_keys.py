"""API keys: created, listed, ensured, revoked; and what they allow."""

import asyncio
import re
from base64 import urlsafe_b64encode
from datetime import UTC, datetime
from random import Random
from typing import Any
from uuid import UUID

import pytest

from tests.ledger.manual_time import ManualTime
from towpath import days, hours, seconds
from towpath.clock import ZERO
from towpath.errors import InvalidName, InvalidOption
from towpath.ledger.errors import KeyEnded, KeyNotFound
from towpath.ledger.keys.key import KeyInfo, Scope, checked_secret
from towpath.ledger.ledger import Ledger

CHOSEN = "canary-chosen-by-the-operator"


def key(
    *, scopes: frozenset[Scope] = frozenset({Scope.ADMIN}), queues: tuple[str, ...] = ("*",)
) -> KeyInfo:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    return KeyInfo(id="x", name="shop", scopes=scopes, queues=queues, owner="x", created_at=now)


class TestCreatingAKey:
    async def test_returns_its_secret_once(self, ledger: Ledger) -> None:
        info, secret = await ledger.keys.create("shop", scopes=["submit"])
        found = await ledger.keys.check(secret.get_secret_value())
        assert found == info
        assert await ledger.keys.list() == [info]

    async def test_gives_a_secret_with_a_prefix_the_id_and_256_random_bits(
        self, ledger: Ledger
    ) -> None:
        made = [await ledger.keys.create("shop", scopes=["read"]) for _ in range(3)]
        for info, secret in made:
            pattern = rf"tp_{info.id}_[\w-]{{43}}"
            assert re.fullmatch(pattern, secret.get_secret_value(), re.ASCII)
        assert len({info.id for info, _ in made}) == 3

    async def test_stores_its_attributes(self, ledger: Ledger, manual_time: ManualTime) -> None:
        until = manual_time.clock.now + days(90)
        info, _ = await ledger.keys.create(
            "Anna's laptop", scopes=["work", "read"], queues=["mails*", "r?ports"], expires_at=until
        )
        assert info == KeyInfo(
            id=info.id,
            name="Anna's laptop",
            scopes=frozenset({Scope.WORK, Scope.READ}),
            queues=("mails*", "r?ports"),
            owner=info.id,
            created_at=manual_time.clock.now,
            expires_at=until,
        )
        assert await ledger.keys.list() == [info]

    async def test_allows_two_keys_with_one_name(self, ledger: Ledger) -> None:
        """Keys are rotated this way: the second exists before the first is revoked."""
        first = await ledger.keys.create("shop", scopes=["submit"])
        second = await ledger.keys.create("shop", scopes=["submit"])
        for info, secret in (first, second):
            assert await ledger.keys.check(secret.get_secret_value()) == info
        await ledger.keys.revoke(first.info.id)
        assert await ledger.keys.check(first.secret.get_secret_value()) is None
        assert await ledger.keys.check(second.secret.get_secret_value()) == second.info


class TestOwnersOfKeys:
    async def test_a_key_owns_what_it_makes_unless_an_owner_is_given(self, ledger: Ledger) -> None:
        own = (await ledger.keys.create("shop", scopes=["submit"])).info
        shared = [
            (await ledger.keys.create("shop", scopes=["submit"], owner="web")).info for _ in "ab"
        ]
        assert own.owner == own.id
        assert own.owns(own.id)
        assert not own.owns("web")
        assert [key.owner for key in shared] == ["web", "web"]
        assert all(key.owns("web") and not key.owns(own.id) for key in shared)

    async def test_only_admins_may_use_what_has_no_owner(self, ledger: Ledger) -> None:
        plain = (await ledger.keys.create("shop", scopes=["submit", "work", "read"])).info
        admin = (await ledger.keys.create("boss", scopes=["admin"])).info
        assert not plain.owns("")
        assert admin.owns("")
        assert admin.owns(plain.owner)

    async def test_an_owner_must_be_a_name(self, ledger: Ledger) -> None:
        for owner in ("", " ", "a\nb", "x" * 101):
            with pytest.raises(InvalidName):
                await ledger.keys.create("shop", scopes=["submit"], owner=owner)
        assert await ledger.keys.list() == []


class TestRotatingAKey:
    async def test_gives_a_new_key_with_the_same_owner(
        self, ledger: Ledger, manual_time: ManualTime
    ) -> None:
        until = manual_time.clock.now + days(90)
        old = await ledger.keys.create(
            "shop", scopes=["submit", "read"], queues=["mails*"], expires_at=until
        )
        new = await ledger.keys.rotate(old.info.id, overlap=hours(1))
        assert new.info.id != old.info.id
        assert new.info.owner == old.info.owner
        same = ("name", "scopes", "queues", "expires_at")
        assert [getattr(new.info, name) for name in same] == [
            getattr(old.info, name) for name in same
        ]
        for secret in (old.secret, new.secret):
            assert await ledger.keys.check(secret.get_secret_value()) is not None
        manual_time.advance(hours(1))
        assert await ledger.keys.check(old.secret.get_secret_value()) is None
        assert await ledger.keys.check(new.secret.get_secret_value()) == new.info

    async def test_without_an_overlap_the_old_key_ends_at_once(self, ledger: Ledger) -> None:
        old = await ledger.keys.create("shop", scopes=["submit"], owner="web")
        assert await ledger.keys.check(old.secret.get_secret_value()) is not None
        new = await ledger.keys.rotate(old.info.id, overlap=ZERO)
        assert await ledger.keys.check(old.secret.get_secret_value()) is None
        assert new.info.owner == "web"

    async def test_never_extends_the_life_of_the_old_key(
        self, ledger: Ledger, manual_time: ManualTime
    ) -> None:
        until = manual_time.clock.now + hours(1)
        old = await ledger.keys.create("shop", scopes=["submit"], expires_at=until)
        await ledger.keys.rotate(old.info.id, overlap=days(1))
        [kept, _] = await ledger.keys.list()
        assert kept.expires_at == until

    async def test_refuses_a_key_that_has_ended_or_does_not_exist(self, ledger: Ledger) -> None:
        old = await ledger.keys.create("shop", scopes=["submit"])
        await ledger.keys.revoke(old.info.id)
        with pytest.raises(KeyEnded):
            await ledger.keys.rotate(old.info.id)
        with pytest.raises(KeyNotFound):
            await ledger.keys.rotate("nobody")
        assert len(await ledger.keys.list()) == 1


class TestAKeyWithInvalidAttributes:
    @pytest.fixture
    def url(self, file_url: str) -> str:
        return file_url

    @pytest.mark.parametrize(
        "wrong",
        [
            {"name": ""},
            {"name": "  "},
            {"name": "x" * 101},
            {"name": "a\nb"},
            {"name": "\ud800"},
            {"scopes": []},
            {"scopes": ["submit", "root"]},
            {"scopes": "root"},
            {"queues": []},
            {"queues": ["UPPER"]},
            {"queues": ["a b"]},
            {"queues": [""]},
            {"queues": ["[a-z]"]},
            {"queues": ["x" * 65]},
            {"queues": ["a"] * 101},
            {"queues": ["*a" * 9]},
            {"expires_at": datetime(2025, 12, 31, tzinfo=UTC)},
            {"expires_at": datetime(2030, 1, 1)},  # noqa: DTZ001 -- what is refused
        ],
    )
    async def test_is_refused(self, ledger: Ledger, wrong: dict[str, Any]) -> None:
        asked: dict[str, Any] = {"name": "shop", "scopes": ["read"]} | wrong
        with pytest.raises((InvalidName, InvalidOption)):
            await ledger.keys.create(asked.pop("name"), **asked)
        assert await ledger.keys.list() == []


class TestAKey:
    @pytest.mark.parametrize(
        ("scopes", "may"),
        [
            ({Scope.SUBMIT}, {Scope.SUBMIT}),
            ({Scope.WORK, Scope.READ}, {Scope.WORK, Scope.READ}),
            ({Scope.ADMIN}, set(Scope)),
        ],
    )
    def test_allows_what_its_scopes_say(self, scopes: set[Scope], may: set[Scope]) -> None:
        info = key(scopes=frozenset(scopes))
        assert {scope for scope in Scope if info.may(scope)} == may

    @pytest.mark.parametrize(
        ("queues", "covered", "others"),
        [
            (("*",), ["mails", "a.b-c_d"], []),
            (("mails",), ["mails"], ["mails2", "xmails", "mail", "mails\n"]),
            (("mails*", "r?"), ["mails", "mails.eu", "r1"], ["xmails", "r", "r12"]),
            (("a.b",), ["a.b"], ["axb"]),
            (("*-eu",), ["mails-eu"], ["mails-eu-2"]),
            (("a****b",), ["ab", "axxb"], ["abc"]),
            (("*a*b?d",), ["abcd", "xaxbabcd"], ["abd", "abcde"]),
            (("*aa",), ["aa", "aaa", "baaaa"], ["a", "aab"]),
            (("a*a", "a*b*b"), ["aa", "axa", "abb", "abxbb"], ["a", "ab", "abc"]),
            (("*-?-*",), ["a-b-c", "--x--"], ["a--b", "a-bb-c"]),
        ],
    )
    def test_covers_the_queues_that_its_patterns_match(
        self, queues: tuple[str, ...], covered: list[str], others: list[str]
    ) -> None:
        """That holds for admin too."""
        info = key(queues=queues)
        assert [queue for queue in covered + others if info.covers(queue)] == covered

    def test_with_many_wildcards_is_matched_quickly(self) -> None:
        """This holds for a key from before the number of wildcards was limited: a search that tries
        every way to fill them would take years.
        """
        info = key(queues=("*-" * 31 + "x", "*-?" * 20 + "x"))
        assert not info.covers("-" * 64)
        assert not info.covers("-" * 2_000)
        assert not info.covers("-" * 63 + "y")

    def test_covers_no_queue_with_an_invalid_name(self) -> None:
        """A key for all queues does: its caller then learns what is wrong with the name."""
        assert not key(queues=("a*",)).covers("a" * 65)
        assert key(queues=("*",)).covers("a" * 65)

    async def test_ends_at_its_time(self, ledger: Ledger, manual_time: ManualTime) -> None:
        """This holds while it is cached, too."""
        until = manual_time.clock.now + seconds(2)
        info, secret = await ledger.keys.create("shop", scopes=["read"], expires_at=until)
        manual_time.advance(seconds(1.999))
        assert await ledger.keys.check(secret.get_secret_value()) == info
        manual_time.advance(seconds(0.001))
        assert await ledger.keys.check(secret.get_secret_value()) is None
        manual_time.advance(hours(1))
        assert await ledger.keys.check(secret.get_secret_value()) is None


class TestRevokingAKey:
    async def test_ends_it_at_once_and_for_good(
        self, ledger: Ledger, manual_time: ManualTime
    ) -> None:
        info, secret = await ledger.keys.create("shop", scopes=["read"])
        assert await ledger.keys.check(secret.get_secret_value()) == info
        manual_time.advance(seconds(1))
        revoked = await ledger.keys.revoke(info.id)
        assert revoked.revoked_at == manual_time.clock.now
        for _ in range(3):
            assert await ledger.keys.check(secret.get_secret_value()) is None
            manual_time.advance(seconds(10))

    async def test_a_second_time_changes_nothing(
        self, ledger: Ledger, manual_time: ManualTime
    ) -> None:
        info, _ = await ledger.keys.create("shop", scopes=["read"])
        first = await ledger.keys.revoke(info.id)
        manual_time.advance(seconds(60))
        assert await ledger.keys.revoke(info.id) == first

    async def test_is_refused_for_an_unknown_key(self, ledger: Ledger) -> None:
        with pytest.raises(KeyNotFound, match="nowhere"):
            await ledger.keys.revoke("nowhere")

    async def test_leaves_the_others(self, ledger: Ledger) -> None:
        one = await ledger.keys.create("one", scopes=["read"])
        other = await ledger.keys.create("other", scopes=["read"])
        await ledger.keys.revoke(one.info.id)
        assert await ledger.keys.check(other.secret.get_secret_value()) == other.info


class TestEnsuringAKey:
    async def test_makes_one_with_the_given_secret(self, ledger: Ledger) -> None:
        assert await ledger.keys.check(CHOSEN) is None
        info = await ledger.keys.ensure(CHOSEN, name="first")
        assert info.may(Scope.ADMIN)
        assert await ledger.keys.check(CHOSEN) == info

    async def test_leaves_an_existing_one_unchanged(
        self, ledger: Ledger, manual_time: ManualTime
    ) -> None:
        first = await ledger.keys.ensure(CHOSEN, name="first", scopes=["read"])
        manual_time.advance(days(1))
        assert await ledger.keys.ensure(CHOSEN, name="second") == first
        assert await ledger.keys.list() == [first]

    async def test_by_several_processes_at_once_makes_one(self, ledger: Ledger, url: str) -> None:
        async with Ledger(url) as other:
            pairs = [(opened.keys.ensure(CHOSEN, name="first")) for opened in (ledger, other) * 5]
            made = await asyncio.gather(*pairs)
        assert len({info.id for info in made}) == 1
        assert len(await ledger.keys.list()) == 1

    async def test_does_not_restore_a_revoked_one(self, ledger: Ledger) -> None:
        info = await ledger.keys.ensure(CHOSEN, name="first")
        await ledger.keys.revoke(info.id)
        with pytest.raises(KeyEnded):
            await ledger.keys.ensure(CHOSEN, name="first")
        assert await ledger.keys.check(CHOSEN) is None

    @pytest.mark.parametrize(
        "secret", ["", "short-canary", "canary " * 5, "canary" * 100, "é" * 20]
    )
    async def test_is_refused_for_a_malformed_secret(self, ledger: Ledger, secret: str) -> None:
        with pytest.raises(InvalidOption) as refusal:
            await ledger.keys.ensure(secret, name="first")
        assert "canary" not in str(refusal.value)

    @pytest.mark.parametrize(
        "secret",
        [
            "a" * 16,
            "a" * 200,
            "abcdefghijklmnopqrstuvwxyz0123456789",
            "0123456789" * 4,
            "canary" * 8,
            "changemechangeme",
            "1234567890abcdef" * 2,
            "00000000-0000-0000-0000-000000000000",
            "0b9d7c1e5f3a8264",
            "correcthorsebatterystaple",
        ],
    )
    async def test_is_refused_for_a_secret_that_can_be_guessed(
        self, ledger: Ledger, secret: str
    ) -> None:
        """It has fewer than 128 random bits, as far as can be seen; the error names a command."""
        with pytest.raises(InvalidOption, match="`openssl ") as refusal:
            await ledger.keys.ensure(secret, name="first")
        assert secret not in str(refusal.value)
        assert await ledger.keys.list() == []

    def test_accepts_every_secret_of_128_random_bits(self) -> None:
        chance = Random(128)
        for _ in range(3_000):
            bits = chance.randbytes(16)
            text = urlsafe_b64encode(bits).rstrip(b"=").decode()
            for secret in (bits.hex(), text, str(UUID(bytes=bits, version=4))):
                assert checked_secret(secret) == secret

    def test_accepts_random_text_without_capitals(self) -> None:
        assert checked_secret("k3v9-x2m7q0w_z8r5t1y6b")


class TestAKeyByItsId:
    """Credentials name the key that has issued them by its id."""

    async def test_is_found_until_it_is_revoked(self, ledger: Ledger) -> None:
        made = await ledger.keys.create("a", scopes=["submit"])
        assert await ledger.keys.check_id(made.info.id) == made.info
        assert await ledger.keys.check_id(made.info.id) == made.info
        await ledger.keys.revoke(made.info.id)
        assert await ledger.keys.check_id(made.info.id) is None

    async def test_that_does_not_exist_is_none(self, ledger: Ledger) -> None:
        assert await ledger.keys.check_id("aaaaaaaaaa") is None
