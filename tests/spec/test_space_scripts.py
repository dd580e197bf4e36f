"""space: what a script of an application may be. One that breaks a rule is refused at the start."""

from pathlib import Path

import pytest

from towpath.embedded import EmbeddedServer
from towpath.engine.engine import Engine
from towpath.engine.model import Call
from towpath.engine.script import Scripts
from towpath.errors import SpaceInvalid

GOOD = """\
-- put: a value under a number, by the lib.
--
-- keys   state    hash     what is known
--        parts:   string   by number
-- args   number   int      which one
--        value    bytes    the value
-- reply  <how many there are>
-- cost   O(1)
-- full   refused
-- uses   clock sizes

local text = 'redis.call("GET", KEYS) -- ' .. "it's no call, \\" "  -- redis.call('FLUSHALL')
if redis.call('EXISTS', STATE, PARTS .. int(number)) == 2 and STATE == PARTS then return end
redis.call('SET', PARTS .. int(number), value, 'PX', 60000 * grown(1))
return redis.call( 'HINCRBY' , STATE, 'parts', 1)
"""
PIECE = """\
-- sizes: how large things are.

local function grown(by) return redis.call('STRLEN', PARTS .. by) + by end
"""


def folder(at: Path, text: str = GOOD, piece: str = PIECE) -> Path:
    (at / "lib").mkdir()
    (at / "put.lua").write_text(text)
    (at / "lib" / "sizes.lua").write_text(piece)
    return at


def test_that_follows_the_rules_is_known_by_its_header(tmp_path: Path) -> None:
    [script] = Scripts().of_records(folder(tmp_path)).values()
    assert script.keys == {"state": "hash", "parts:": "string"}
    assert (script.args, script.writes) == ({"number": "int", "value": "bytes"}, True)


async def test_that_follows_the_rules_runs(tmp_path: Path, server: EmbeddedServer) -> None:
    async with Engine(server.url) as engine:
        record = engine.space("try", folder(tmp_path)).at("1")
        assert [await record.run("put", number=n, value=b"x") for n in (1, 2)] == [1, 2]


async def test_may_call_its_keys_and_arguments_what_the_engine_calls_its_own(
    tmp_path: Path, server: EmbeddedServer
) -> None:
    """Nothing around a script changes what its names mean, nor the other way round."""
    text = GOOD.replace("parts:", "verb: ").replace("PARTS", "VERB").replace("value", "channel")
    piece = PIECE.replace("PARTS", "VERB")
    async with Engine(server.url) as engine:
        record = engine.space("try", folder(tmp_path, text, piece)).at("1")
        call = Call("client-7", 1)
        for _ in range(2):
            assert await record.run("put", number=7, channel=b"x", call=call) == 1
    assert server.ask("EXISTS", "try:{1}:verb:7", "try:{1}:state") == 2


NO_KEY, NOT_FOR = "is not a key in its header", "is not an allowed command for a"
FORM = "needs a name of its own, a type and a sentence"
BROKEN = {
    "a key that is not in its header": ("EXISTS', STATE", "EXISTS', OTHER", NO_KEY),
    "a key with more behind its name": ("'HINCRBY' , STATE,", "'HINCRBY' , STATE .. 'x',", NO_KEY),
    "many keys without saying which": ("'SET', PARTS .. int(number)", "'SET', PARTS", NO_KEY),
    "a key or another": ("'HINCRBY' , STATE,", "'HINCRBY' , STATE or 'x',", NO_KEY),
    "a key by another name": ("EXISTS', STATE", "EXISTS', 'try:{1}:state'", NO_KEY),
    "a second key by another name": ("PARTS .. int(number)) == 2", "'parts') == 2", NO_KEY),
    "keys from a list": ("PARTS .. int(number)) == 2", "unpack({STATE})) == 2", NO_KEY),
    "no key": ("'EXISTS', STATE, PARTS .. int(number)", "'EXISTS'", NO_KEY),
    "the declared key past its header": ("EXISTS', STATE", "EXISTS', KEYS[1]", "not use KEYS"),
    "an argument past its header": (".. int(number), value", ".. 1, ARGV[5]", "not use ARGV"),
    "a command that is not written out": ("redis.call( 'HINCRBY'", "redis.call(text", NOT_FOR),
    "a command that takes other keys": ("'HINCRBY' , STATE", "'RENAME', STATE", NOT_FOR),
    "a command about everything": ("'HINCRBY' , STATE, 'parts', 1", "'FLUSHALL'", NO_KEY),
    "a command for another type": ("'HINCRBY' , STATE", "'INCRBY' , STATE", NOT_FOR),
    "another name for the call": ("local text =", "local c = redis.call local text =", "redis"),
    "another name for the server": ("local text =", "local r = redis local text =", "redis"),
    "a key that becomes another": ("local text =", "local STATE = 'x' local text =", "not change"),
    "keys that become others": ("local text =", "local STATE, x = 'x' local text =", "not change"),
    "a text over lines": ("local text =", "local more = [[ x ]] local text =", "not use"),
    "a piece that is not there": ("clock sizes", "clock sizes others", "others.lua"),
    "a piece of the engine's own": ("clock sizes", "clock sizes close", "close.lua"),
    "a piece that sends any command": ("clock sizes", "clock sizes send", "send.lua"),
    "no line about keys": ("-- keys ", "-- kees ", "lacks: keys"),
    "no line about memory": ("-- full   refused\n", "", "lacks: full"),
    "another word about memory": ("-- full   refused", "-- full   perhaps", "works or refused"),
    "no sentence about a key": ("hash     what is known", "hash", FORM),
    "another type of a key": ("hash     what is known", "json     what is known", FORM),
    "another type of an argument": ("int      which one", "number   which one", FORM),
    "a key that is named twice": ("parts:   string", "state    hash  ", FORM),
    "a key with a tag": ("parts:   string", "{parts}  string", FORM),
    "a key of the engine": ("parts:   string", "never    string", "never is taken"),
    "the memory of calls": ("parts:   string", "call:    string", "call: is taken"),
    "a key that is called so": ("parts:   string", "call     string", "call is taken"),
    "an argument that Lua has a word for": ("number   int ", "end      int ", "end is taken"),
    "an argument that a call has a word for": ("number   int ", "call     int ", "call is taken"),
    "another title": ("-- put: ", "-- set: ", "header's first line"),
    "no header": ("-- put: ", "local x --", "open with its header"),
}


@pytest.mark.parametrize("fault", BROKEN)
def test_with_a_fault_is_refused(tmp_path: Path, fault: str) -> None:
    words, instead, reason = BROKEN[fault]
    assert GOOD.count(words) == 1
    with pytest.raises(SpaceInvalid, match="put: ") as refusal:
        Scripts().of_records(folder(tmp_path, GOOD.replace(words, instead)))
    assert reason in str(refusal.value)


def test_with_a_fault_in_a_piece_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpaceInvalid, match="put"):
        Scripts().of_records(folder(tmp_path, piece=PIECE.replace("PARTS", "'parts'")))


def test_whose_name_is_no_word_is_refused(tmp_path: Path) -> None:
    (tmp_path / "put_2.lua").write_text(GOOD)
    with pytest.raises(SpaceInvalid, match="put_2"):
        Scripts().of_records(folder(tmp_path))


def of_two_words(at: Path, more: str) -> Path:
    text = GOOD.replace("-- put: ", "-- put_value: ").replace("-- cost ", f"{more}-- cost ")
    folder(at, text).joinpath("put.lua").rename(at / "put_value.lua")
    return at


async def test_of_two_words_is_remembered_under_one(tmp_path: Path, server: EmbeddedServer) -> None:
    """Under the one it had before it was renamed: a call of the release before is answered."""
    at = of_two_words(tmp_path, "-- stored put               its name before\n")
    async with Engine(server.url) as engine:
        record, call, kept = engine.space("try", at).at("1"), Call("c", 1), "try:{1}:call:c"
        assert await record.run("put_value", number=1, value=b"x", call=call) == 1
        assert str(server.ask("GET", kept)).startswith("b'1 put ")
        server.ask("SET", kept, b"1 put \x91\x07")
        assert await record.run("put_value", number=1, value=b"x", call=call) == 7


@pytest.mark.parametrize("line", ["", "-- stored put_it            two words again\n"])
def test_of_two_words_needs_one_to_be_remembered_under(tmp_path: Path, line: str) -> None:
    with pytest.raises(SpaceInvalid, match=r"put_value: .*stored"):
        Scripts().of_records(of_two_words(tmp_path, line))


def test_that_gives_a_key_of_another_a_type_of_its_own_is_refused(tmp_path: Path) -> None:
    other = (
        "-- look: at it.\n--\n-- keys   state    zset     ranks\n-- args   none\n-- reply  <it>\n"
    )
    text = f"{other}-- cost   O(1)\n-- full   works\n\nreturn redis.call('ZCARD', STATE)\n"
    (tmp_path / "look.lua").write_text(text)
    with pytest.raises(SpaceInvalid, match="state is a zset"):
        Scripts().of_records(folder(tmp_path))


def test_there_must_be_one(tmp_path: Path) -> None:
    """Whoever names a folder that is empty or not there is told at the start."""
    for at in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(SpaceInvalid, match="no scripts"):
            Scripts().of_records(at)
