"""space: records of an application in Redis, changed by its own scripts."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.servers import newest, oldest
from tests.spec import letters, parcels
from tests.spec.deployment import USER, Deployment
from towpath.clock import ManualClock, instant, seconds
from towpath.embedded import EmbeddedServer, ServerBinary
from towpath.embedded.process import fields
from towpath.engine.durability import Durability
from towpath.engine.engine import Engine
from towpath.engine.model import Call
from towpath.engine.space import Space, SpaceRecord
from towpath.errors import (
    CallStale,
    CallTaken,
    DurabilityUnavailable,
    EngineClosed,
    InvalidName,
    InvalidOption,
    MemoryFull,
    SpaceInvalid,
    WrongKeyType,
)

MEBIBYTE = 1024 * 1024
FIRST = Call("client-7", 1)
IDS = ["a", "{", "}", "{}", "}{", "a}:pieces:1", "a b", "ä:#", "%7B", "%", "x" * 512]


@pytest.fixture
def parcel_space(deployment: Deployment, engine: Engine) -> Space:
    """As a user who may also do what these scripts need, on the keys of their spaces."""
    more = ["~parcel:*", "~letter:*", "+hincrby", "+strlen", "+lrange"]
    for master in deployment.masters:
        master.ask("ACL", "SETUSER", USER, *more)
    return engine.space("parcel", parcels.SCRIPTS)


@pytest.fixture
def letter_space(parcel_space: Space, engine: Engine) -> Space:
    return engine.space("letter", letters.SCRIPTS)


async def store(parcel: SpaceRecord, token: int, number: int = 1, piece: bytes = b"x") -> Any:
    return await parcel.run("store", token=token, number=number, piece=piece, label="l", more=[])


def facts_of(told: Any) -> dict[bytes, bytes]:
    flat = told[1]
    return dict(zip(flat[::2], flat[1::2], strict=True))


class TestARecord:
    async def test_has_keys_with_its_prefix_and_its_tag(
        self, parcel_space: Space, deployment: Deployment
    ) -> None:
        parcel = parcel_space.at("p-1")
        token = await parcel.run("hold")
        await store(parcel, token, 3)
        names = {f"parcel:{{p-1}}:{ending}" for ending in ("state", "pieces:3", "labels")}
        assert set(deployment.dump()) == names

    async def test_is_changed_by_the_holder_of_its_token(self, parcel_space: Space) -> None:
        parcel = parcel_space.at("p-1")
        first = await parcel.run("hold")
        assert await store(parcel, first) == [1, 1]
        second = await parcel.run("hold")
        assert await store(parcel, first, 2) == [b"TOKEN_STALE", second]
        assert await store(parcel, second, 2, b"yy") == [2, 3]

    async def test_stores_and_returns_bytes_texts_and_lists(self, parcel_space: Space) -> None:
        parcel, every_byte = parcel_space.at("p-1"), bytes(range(256))
        await parcel.run("hold")
        more = [b"\x00\xff", "ö", 7]
        for piece in (every_byte, memoryview(every_byte)):
            await parcel.run("store", token=1, number=-4, piece=piece, label="ä\n", more=more)
            assert await parcel.read("piece", number=-4) == every_byte
        told = await parcel.read("state")
        assert told[2] == ["ä\n".encode(), b"\x00\xff", "ö".encode(), b"7"] * 2

    async def test_that_was_never_written_is_empty(self, parcel_space: Space) -> None:
        parcel = parcel_space.at("p-1")
        assert await parcel.read("piece", number=1) is None
        assert (await parcel.read("state"))[1:] == [[], []]

    async def test_of_8_mib_is_stored_once(
        self, parcel_space: Space, deployment: Deployment
    ) -> None:
        """Redis remembers neither the arguments nor the answer of the call."""
        parcel, large = parcel_space.at("p-1"), bytes(range(256)) * (8 * MEBIBYTE // 256)
        await parcel.run("hold")
        assert await store(parcel, 1, 1, large) == [1, len(large)]
        for _ in range(5):
            assert await parcel.read("piece", number=1) == large
        calls = [key for key in deployment.key_names() if ":call:" in key]
        assert 1 <= len(calls) <= 4
        for key in calls:
            memory = deployment.ask("GET", key)
            assert isinstance(memory, bytes)
            assert len(memory) < 64

    async def test_goes_by_the_manual_clock_of_the_engine(
        self, parcel_space: Space, clock: ManualClock
    ) -> None:
        parcel = parcel_space.at("p-1")
        await parcel.run("hold")
        held_at = int(clock.stamp())
        clock.advance(seconds(90))
        told = await parcel.read("state")
        assert facts_of(told)[b"held_at"] == b"%d" % held_at
        assert told[0] == held_at + 90_000

    async def test_goes_by_the_clock_of_redis_otherwise(
        self, parcel_space: Space, deployment: Deployment
    ) -> None:
        async with Engine(deployment.url) as engine:
            parcel = engine.space("parcel", parcels.SCRIPTS).at("p-1")
            before = deployment.time()
            now = (await parcel.read("state"))[0]
        assert before <= instant(now) < deployment.time() + seconds(1)

    async def test_is_changed_in_one_round_trip(
        self, parcel_space: Space, deployment: Deployment
    ) -> None:
        parcel = parcel_space.at("p-1")
        await parcel.run("hold")
        await parcel.read("state")
        before = deployment.calls("evalsha", "eval")
        await parcel.run("hold")
        await parcel.read("state")
        assert deployment.calls("evalsha", "eval") - before == 2


class TestTheIdOfARecord:
    async def test_may_be_any_text_and_is_one_record(
        self, parcel_space: Space, deployment: Deployment
    ) -> None:
        """Braces neither end the tag early nor turn one record into two."""
        for number, id in enumerate(IDS):
            parcel = parcel_space.at(id)
            await parcel.run("hold")
            await store(parcel, 1, 1, b"%d" % number)
        found = [await parcel_space.at(id).read("piece", number=1) for id in IDS]
        assert found == [b"%d" % number for number in range(len(IDS))]
        assert len(deployment.dump()) == 3 * len(IDS)

    async def test_is_unchanged_in_the_names_of_keys(
        self, parcel_space: Space, deployment: Deployment
    ) -> None:
        await parcel_space.at("01JB7Q/a b:c#d").run("hold")
        assert set(deployment.dump()) == {"parcel:{01JB7Q/a b:c#d}:state"}

    @pytest.mark.parametrize("id", ["", "a\n", "x" * 513, "\ud800", 7, None, b"a"])
    async def test_that_is_invalid_is_refused(self, parcel_space: Space, id: str) -> None:
        with pytest.raises(InvalidName):
            parcel_space.at(id)


class TestARepeatedCall:
    async def test_has_one_effect_and_one_answer(self, parcel_space: Space) -> None:
        parcel = parcel_space.at("p-1")
        assert [await parcel.run("hold", call=FIRST) for _ in range(3)] == [1, 1, 1]
        assert await parcel.run("hold", call=Call("client-7", 2)) == 2

    async def test_gives_the_same_answer_of_any_type(
        self, parcel_space: Space, letter_space: Space
    ) -> None:
        parcel, letter = parcel_space.at("p-1"), letter_space.at("l-1")
        await parcel.run("hold")
        calls: list[Callable[[Call], Awaitable[object]]] = [
            lambda call: parcel.run("drop", number=1, call=call),
            lambda call: parcel.run(
                "store", token=1, number=1, piece=b"x", label="l", more=["m"], call=call
            ),
            lambda call: parcel.run(
                "store", token=9, number=1, piece=b"x", label="l", more=[], call=call
            ),
            lambda call: parcel.run("drop", number=1, call=call),
            lambda call: letter.run("write", line="x", call=call),
            lambda call: letter.run("tear", call=call),
        ]
        expected = [None, [1, 1], [b"TOKEN_STALE", 1], b"dropped", 1, None]
        for number, (call, answer) in enumerate(zip(calls, expected, strict=True), 1):
            named = Call("client-7", number)
            assert [await call(named), await call(named)] == [answer, answer]
        assert await letter.read("lines") == []

    async def test_has_one_effect_if_it_answers_nothing(self, letter_space: Space) -> None:
        letter = letter_space.at("l-1")
        assert await letter.run("tear", call=FIRST) is None
        await letter.run("write", line="new")
        assert await letter.run("tear", call=FIRST) is None
        assert await letter.read("lines") == [b"new"]

    async def test_is_made_anew_after_an_error(
        self, letter_space: Space, deployment: Deployment
    ) -> None:
        """The failed call had no effect, so there is nothing to remember."""
        letter = letter_space.at("l-1")
        deployment.ask("SET", "letter:{l-1}", "in the way")
        with pytest.raises(WrongKeyType):
            await letter.run("write", line="x", call=FIRST)
        deployment.ask("UNLINK", "letter:{l-1}")
        assert await letter.run("write", line="x", call=FIRST) == 1

    async def test_is_refused_if_it_was_not_the_last_or_had_another_script(
        self, parcel_space: Space
    ) -> None:
        parcel = parcel_space.at("p-1")
        await parcel.run("hold", call=Call("client-7", 5))
        with pytest.raises(CallStale):
            await parcel.run("hold", call=Call("client-7", 4))
        with pytest.raises(CallTaken):
            await parcel.run("drop", number=1, call=Call("client-7", 5))
        assert facts_of(await parcel.read("state"))[b"token"] == b"1"

    async def test_on_another_record_is_another_call(self, parcel_space: Space) -> None:
        answers = [await parcel_space.at(id).run("hold", call=FIRST) for id in ("a", "b")]
        assert answers == [1, 1]


class TestTwoSpaces:
    async def test_keep_records_of_the_same_id_apart(
        self, parcel_space: Space, letter_space: Space, deployment: Deployment
    ) -> None:
        parcel, letter = parcel_space.at("1"), letter_space.at("1")
        await parcel.run("hold", call=FIRST)
        assert await letter.run("write", line="hello", call=FIRST) == 1
        assert await letter.read("lines") == [b"hello"]
        assert set(deployment.dump()) == {"parcel:{1}:state", "letter:{1}"}

    async def test_of_one_name_are_the_same_if_their_scripts_are(
        self, parcel_space: Space, engine: Engine
    ) -> None:
        assert engine.space("parcel", parcels.SCRIPTS) is parcel_space
        with pytest.raises(SpaceInvalid, match="parcel"):
            engine.space("parcel", letters.SCRIPTS)

    async def test_may_have_the_same_scripts(
        self, parcel_space: Space, letter_space: Space, engine: Engine
    ) -> None:
        await engine.space("letter", letters.SCRIPTS).at("1").run("write", line="a")
        assert await letter_space.at("1").read("lines") == [b"a"]


class TestTheNameOfASpace:
    @pytest.mark.parametrize(
        "name", ["", "Upload", "a:b", "a b", "{a}", "x" * 65, "towpath:stream"]
    )
    async def test_that_is_invalid_is_refused(self, engine: Engine, name: str) -> None:
        with pytest.raises(InvalidName):
            engine.space(name, parcels.SCRIPTS)

    async def test_that_the_engine_uses_is_refused(self, engine: Engine) -> None:
        with pytest.raises(SpaceInvalid) as refusal:
            engine.space("towpath", parcels.SCRIPTS)
        assert "towpath" in refusal.value.subject


class TestACallOfAScript:
    async def test_that_does_not_exist_is_refused(
        self, parcel_space: Space, deployment: Deployment
    ) -> None:
        """A script that writes cannot be called as a read, nor one that reads as a write."""
        parcel = parcel_space.at("p-1")
        for name in ("nothing", "state", "lib/token", "token"):
            with pytest.raises(TypeError, match=rf"{name}.*\bhold\b"):
                await parcel.run(name)
        for name in ("nothing", "hold"):
            with pytest.raises(TypeError, match=rf"{name}.*\bstate\b"):
                await parcel.read(name)
        assert deployment.key_names() == set()

    async def test_with_wrong_arguments_is_refused(self, parcel_space: Space) -> None:
        parcel = parcel_space.at("p-1")
        with pytest.raises(TypeError, match=r"piece.*number"):
            await parcel.read("piece")
        with pytest.raises(TypeError, match="hold"):
            await parcel.run("hold", number=1)

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("number", "1"), ("number", True), ("number", 1.0), ("number", 2**53 + 1),
            ("number", None), ("piece", "x"), ("piece", 7), ("label", b"x"), ("label", "\ud800"),
            ("more", {object()}), ("more", ["\ud800"]), ("more", "x"),
        ],
    )  # fmt: skip
    async def test_with_a_value_of_another_type_is_refused(
        self, parcel_space: Space, deployment: Deployment, name: str, value: Any
    ) -> None:
        args: dict[str, Any] = {"token": 0, "number": 1, "piece": b"x", "label": "l", "more": []}
        with pytest.raises(InvalidOption, match=name):
            await parcel_space.at("p-1").run("store", **args | {name: value})
        assert deployment.key_names() == set()

    async def test_is_refused_whole_if_a_key_has_another_type(
        self, parcel_space: Space, deployment: Deployment
    ) -> None:
        parcel = parcel_space.at("p-1")
        await parcel.run("hold")
        deployment.ask("SET", "parcel:{p-1}:labels", "in the way")
        before = deployment.dump()
        with pytest.raises(WrongKeyType):
            await store(parcel, 1)
        assert deployment.dump() == before
        deployment.ask("UNLINK", "parcel:{p-1}:labels")
        assert await store(parcel, 1) == [1, 1]

    async def test_is_made_only_with_the_durability_class_asked_for(
        self, parcel_space: Space
    ) -> None:
        parcel = parcel_space.at("p-1")
        assert await parcel.run("hold", durability=Durability()) == 1
        for wanted in (Durability.parse("disk"), Durability(replicas=5)):
            with pytest.raises(DurabilityUnavailable):
                await parcel.run("hold", durability=wanted)
        assert await parcel.run("hold") == 2

    async def test_goes_to_the_engines_redis_once_the_engine_is_entered(
        self, parcel_space: Space, deployment: Deployment
    ) -> None:
        """An application may ask for its space before."""
        later = Engine(deployment.url)
        parcel = later.space("parcel", parcels.SCRIPTS).at("p-1")
        async with later:
            assert await parcel.run("hold") == 1

    async def test_by_two_engines_changes_the_same_record(
        self, parcel_space: Space, other_engine: Engine
    ) -> None:
        others = other_engine.space("parcel", parcels.SCRIPTS).at("p-1")
        ours = parcel_space.at("p-1")
        assert [await ours.run("hold"), await others.run("hold"), await ours.run("hold")] == [
            1,
            2,
            3,
        ]

    async def test_after_the_engine_was_left_is_refused(self, deployment: Deployment) -> None:
        async with Engine(deployment.url) as engine:
            parcel = engine.space("parcel", parcels.SCRIPTS).at("p-1")
        for call in (parcel.run("hold"), parcel.read("state")):
            with pytest.raises(EngineClosed):
                await call


class TestARedisThatForgot:
    async def test_the_scripts_gets_them_again(
        self, parcel_space: Space, deployment: Deployment
    ) -> None:
        parcel = parcel_space.at("p-1")
        await parcel.run("hold")
        for _ in range(2):
            for master in deployment.masters:
                master.ask("SCRIPT", "FLUSH")
            await store(parcel, 1)
            assert await parcel.read("piece", number=1) == b"x"

    async def test_everything_starts_anew(
        self, parcel_space: Space, deployment: Deployment
    ) -> None:
        parcel = parcel_space.at("p-1")
        assert await parcel.run("hold", call=FIRST) == 1
        deployment.flush()
        assert await parcel.read("piece", number=1) is None
        assert await parcel.run("hold", call=FIRST) == 1


@pytest.mark.parametrize("binary", [newest, oldest])
async def test_scripts_that_grow_are_refused_and_those_that_free_work_with_memory_full(
    binary: Callable[[], ServerBinary],
) -> None:
    with EmbeddedServer(binary=binary()) as server:
        async with Engine(server.url) as engine:
            parcel = engine.space("parcel", parcels.SCRIPTS).at("p-1")
            await parcel.run("hold")
            await store(parcel, 1, 1, bytes(MEBIBYTE))
            used = int(fields(server.ask("INFO", "memory"))["used_memory"])
            server.ask("CONFIG", "SET", "maxmemory", used - MEBIBYTE // 2)
            before = await parcel.read("state")
            for call in (store(parcel, 1, 2), parcel.run("hold")):
                with pytest.raises(MemoryFull):
                    await call
            assert (await parcel.read("state"))[1:] == before[1:]
            assert await parcel.run("drop", number=1) == b"dropped"
            assert await store(parcel, 1, 2) == [1, MEBIBYTE + 1]
