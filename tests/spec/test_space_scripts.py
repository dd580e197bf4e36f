"""space: what a script of an application may be. One that breaks a rule is refused at the start."""

from pathlib import Path

import pytest

from towpath.embedded import EmbeddedServer
from towpath.engine.engine import Engine
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
redis.call('SET', PARTS .. int(number), value, 'PX', grown(1))
return redis.call( 'HINCRBY' , STATE, 'parts', 1)
"""
PIECE = """\
-- sizes: how large things are.

local function grown(by) return redis.call('STRLEN', PARTS) + by end
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


BROKEN = {
    "a key that is not in its header": ("EXISTS', STATE", "EXISTS', OTHER"),
    "a key by another name": ("EXISTS', STATE", "EXISTS', 'try:{1}:state'"),
    "a second key by another name": ("PARTS .. int(number)) == 2", "'parts') == 2"),
    "keys from a list": ("PARTS .. int(number)) == 2", "unpack({STATE})) == 2"),
    "no key": ("'EXISTS', STATE, PARTS .. int(number)", "'EXISTS'"),
    "the declared key past its header": ("EXISTS', STATE", "EXISTS', KEYS[1]"),
    "an argument past its header": (".. int(number), value", ".. int(number), ARGV[5]"),
    "a command that is not written out": ("redis.call( 'HINCRBY'", "redis.call(text"),
    "a command that takes other keys": ("'HINCRBY' , STATE, 'parts', 1", "'RENAME', STATE, PARTS"),
    "a command about everything": ("'HINCRBY' , STATE, 'parts', 1", "'FLUSHALL'"),
    "a command for another type": ("'HINCRBY' , STATE", "'HINCRBY' , PARTS"),
    "another name for the call": ("local text =", "local call = redis.call local text ="),
    "another name for the server": ("local text =", "local r = redis local text ="),
    "a key that becomes another": ("local text =", "local STATE = 'x' local text ="),
    "keys that become others": ("local text =", "local STATE, x = 'x' local text ="),
    "a text over lines": ("local text =", "local more = [[ x ]] local text ="),
    "a piece that is not there": ("clock sizes", "clock sizes others"),
    "a piece of the engine's own": ("clock sizes", "clock sizes close"),
    "no line about keys": ("-- keys ", "-- kees "),
    "no line about memory": ("-- full   refused\n", ""),
    "another word about memory": ("-- full   refused", "-- full   perhaps"),
    "no sentence about a key": ("hash     what is known", "hash"),
    "another type of a key": ("hash     what is known", "json     what is known"),
    "another type of an argument": ("int      which one", "number   which one"),
    "a key that is named twice": ("parts:   string", "state    hash  "),
    "a key of the engine": ("parts:   string", "never    string"),
    "the memory of calls": ("parts:   string", "call:    string"),
    "a key with a tag": ("parts:   string", "{parts}  string"),
    "an argument that Lua has a word for": ("number   int ", "end      int "),
    "an argument that a call has a word for": ("number   int ", "call     int "),
    "another title": ("-- put: ", "-- set: "),
    "no header": (GOOD[:200], ""),
}


@pytest.mark.parametrize("fault", BROKEN)
def test_with_a_fault_is_refused(tmp_path: Path, fault: str) -> None:
    words, instead = BROKEN[fault]
    assert GOOD.count(words) == 1
    with pytest.raises(SpaceInvalid, match="put"):
        Scripts().of_records(folder(tmp_path, GOOD.replace(words, instead)))


def test_with_a_fault_in_a_piece_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpaceInvalid, match="put"):
        Scripts().of_records(folder(tmp_path, piece=PIECE.replace("PARTS", "'parts'")))


def test_whose_name_is_no_word_is_refused(tmp_path: Path) -> None:
    (tmp_path / "put_2.lua").write_text(GOOD)
    with pytest.raises(SpaceInvalid, match="put_2"):
        Scripts().of_records(folder(tmp_path))


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
