"""space: the rules for scripts of applications. `check_scripts` refuses a script that breaks one.
What the engine needs of a header is refused at the start as well.
"""

import re
from pathlib import Path

import pytest

from towpath.embedded import EmbeddedServer
from towpath.engine.engine import Engine
from towpath.engine.model import Call
from towpath.engine.script import Scripts
from towpath.errors import SpaceInvalid
from towpath.testing import check_scripts
from towpath.testing.scripts import writing_commands

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


def test_a_script_that_follows_the_rules_is_known_by_its_header(tmp_path: Path) -> None:
    [script] = Scripts().of_records(folder(tmp_path)).values()
    assert script.keys == {"state": "hash", "parts:": "string"}
    assert (script.args, script.writes) == ({"number": "int", "value": "bytes"}, True)


async def test_a_script_that_follows_the_rules_runs(tmp_path: Path, server: EmbeddedServer) -> None:
    async with Engine(server.url) as engine:
        record = engine.space("try", folder(tmp_path)).at("1")
        assert [await record.run("put", number=n, value=b"x") for n in (1, 2)] == [1, 2]


async def test_a_script_may_use_the_engines_names_for_its_keys_and_arguments(
    tmp_path: Path, server: EmbeddedServer
) -> None:
    """The code around a script does not change what its names mean, nor the other way round."""
    text = GOOD.replace("parts:", "verb: ").replace("PARTS", "VERB").replace("value", "channel")
    piece = PIECE.replace("PARTS", "VERB")
    async with Engine(server.url) as engine:
        record = engine.space("try", folder(tmp_path, text, piece)).at("1")
        call = Call("client-7", 1)
        for _ in range(2):
            assert await record.run("put", number=7, channel=b"x", call=call) == 1
    assert server.ask("EXISTS", "try:{1}:verb:7", "try:{1}:state") == 2


BROKEN = {
    "a key that is not in its header": ("EXISTS', STATE", "EXISTS', OTHER", "OTHER"),
    "a key with more behind its name": (
        "'HINCRBY' , STATE,",
        "'HINCRBY' , STATE .. 'x',",
        ".. 'x'",
    ),
    "many keys without saying which": ("'SET', PARTS .. int(number)", "'SET', PARTS", "SET PARTS"),
    "a key or another": ("'HINCRBY' , STATE,", "'HINCRBY' , STATE or 'x',", "STATE or 'x'"),
    "a key by another name": ("EXISTS', STATE", "EXISTS', 'try:{1}:state'", "'try:{1}:state'"),
    "a second key by another name": ("PARTS .. int(number)) == 2", "'parts') == 2", "'parts'"),
    "keys from a list": ("PARTS .. int(number)) == 2", "unpack({STATE})) == 2", "unpack({STATE})"),
    "no key": ("'EXISTS', STATE, PARTS .. int(number)", "'EXISTS'", "EXISTS"),
    "the declared key past its header": ("EXISTS', STATE", "EXISTS', KEYS[1]", "KEYS"),
    "an argument past its header": (".. int(number), value", ".. 1, ARGV[5]", "ARGV"),
    "a command that is not written out": ("redis.call( 'HINCRBY'", "redis.call(text", "text"),
    "a command that takes other keys": ("'HINCRBY' , STATE", "'RENAME', STATE", "RENAME"),
    "a command about everything": ("'HINCRBY' , STATE, 'parts', 1", "'FLUSHALL'", "FLUSHALL"),
    "a command for another type": ("'HINCRBY' , STATE", "'INCRBY' , STATE", "INCRBY"),
    "another name for the call": ("local text =", "local c = redis.call local text =", "redis"),
    "another name for the server": ("local text =", "local r = redis local text =", "redis"),
    "a key that becomes another": ("local text =", "local STATE = 'x' local text =", "STATE"),
    "keys that become others": ("local text =", "local STATE, x = 'x' local text =", "STATE"),
    "a text over lines": ("local text =", "local more = [[ x ]] local text =", "[["),
    "a piece that is not there": ("clock sizes", "clock sizes others", "others.lua"),
    "a piece of the engine's own": ("clock sizes", "clock sizes close", "close.lua"),
    "a piece that sends any command": ("clock sizes", "clock sizes send", "send.lua"),
    "no line about keys": ("-- keys ", "-- kees ", "keys"),
    "no line about memory": ("-- full   refused\n", "", "full"),
    "no sentence about a key": ("hash     what is known", "hash", "'state    hash'"),
    "another type of a key": ("hash     what is known", "json     what is known", "json"),
    "another type of an argument": ("int      which one", "number   which one", "number   number"),
    "a key that is named twice": ("parts:   string", "state    hash  ", "hash     by number"),
    "a key with a tag": ("parts:   string", "{parts}  string", "{parts}"),
    "a key of the engine": ("parts:   string", "never    string", "never"),
    "the memory of calls": ("parts:   string", "call:    string", "call:"),
    "a key that is called so": ("parts:   string", "call     string", "call"),
    "an argument that Lua has a word for": ("number   int ", "end      int ", "end"),
    "an argument that a call has a word for": ("number   int ", "call     int ", "call"),
}
"""What replaces what in the script, and the words of the script that the refusal names."""
REFUSED_AT_THE_START = [
    fault
    for fault in BROKEN
    if fault
    in {
        "a piece that is not there",
        "a piece of the engine's own",
        "a piece that sends any command",
        "no line about keys",
        "no line about memory",
        "no sentence about a key",
        "another type of a key",
        "another type of an argument",
        "a key that is named twice",
        "a key with a tag",
        "a key of the engine",
        "the memory of calls",
        "a key that is called so",
        "an argument that Lua has a word for",
        "an argument that a call has a word for",
    }
]
"""The faults in a header or in the list of pieces."""
UNREADABLE = {
    "another word about memory": ("-- full   refused", "-- full   perhaps"),
    "another title": ("-- put: ", "-- set: "),
    "no header": ("-- put: ", "local x --"),
}


@pytest.mark.parametrize("fault", BROKEN)
def test_a_script_with_a_fault_is_refused(tmp_path: Path, fault: str) -> None:
    words, instead, named = BROKEN[fault]
    assert GOOD.count(words) == 1
    with pytest.raises(SpaceInvalid) as refusal:
        check_scripts(folder(tmp_path, GOOD.replace(words, instead)))
    assert refusal.value.subject == "put"
    assert re.search(rf"(?<!\w){re.escape(named)}(?!\w)", refusal.value.rule)


@pytest.mark.parametrize("fault", REFUSED_AT_THE_START)
def test_a_script_with_a_fault_in_its_header_is_refused_at_the_start(
    tmp_path: Path, fault: str
) -> None:
    words, instead, _ = BROKEN[fault]
    with pytest.raises(SpaceInvalid) as refusal:
        Scripts().of_records(folder(tmp_path, GOOD.replace(words, instead)))
    assert refusal.value.subject == "put"


@pytest.mark.parametrize("command", sorted(writing_commands()))
def test_a_script_with_a_writing_command_counts_as_one_that_writes(
    tmp_path: Path, command: str
) -> None:
    """Calls of such a script are remembered."""
    text = GOOD[: GOOD.index("local text")] + "-- redis.call('SET', STATE)\nreturn 1\n"
    [reading] = Scripts().of_records(folder(tmp_path, text, "-- sizes: nothing.\n")).values()
    assert not reading.writes
    (tmp_path / "put.lua").write_text(f"{text}\nredis.pcall( '{command}', STATE)\n")
    [writing] = Scripts().of_records(tmp_path).values()
    assert writing.writes


@pytest.mark.parametrize("fault", UNREADABLE)
def test_a_script_with_an_unreadable_header_is_refused(tmp_path: Path, fault: str) -> None:
    words, instead = UNREADABLE[fault]
    assert GOOD.count(words) == 1
    with pytest.raises(SpaceInvalid) as refusal:
        Scripts().of_records(folder(tmp_path, GOOD.replace(words, instead)))
    assert refusal.value.subject == "put"


def test_a_script_with_a_fault_in_a_piece_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpaceInvalid, match="put"):
        check_scripts(folder(tmp_path, piece=PIECE.replace("PARTS", "'parts'")))


def test_a_script_with_an_invalid_name_is_refused(tmp_path: Path) -> None:
    (tmp_path / "put_2.lua").write_text(GOOD)
    with pytest.raises(SpaceInvalid, match="put_2"):
        Scripts().of_records(folder(tmp_path))


def of_two_words(at: Path, more: str) -> Path:
    text = GOOD.replace("-- put: ", "-- put_value: ").replace("-- cost ", f"{more}-- cost ")
    folder(at, text).joinpath("put.lua").rename(at / "put_value.lua")
    return at


async def test_a_renamed_script_is_remembered_under_its_old_name(
    tmp_path: Path, server: EmbeddedServer
) -> None:
    """So the repeat of a call of the release before is answered."""
    at = of_two_words(tmp_path, "-- stored put               its name before\n")
    async with Engine(server.url) as engine:
        record, call, kept = engine.space("try", at).at("1"), Call("c", 1), "try:{1}:call:c"
        assert await record.run("put_value", number=1, value=b"x", call=call) == 1
        assert str(server.ask("GET", kept)).startswith("b'1 put ")
        server.ask("SET", kept, b"1 put \x91\x07")
        assert await record.run("put_value", number=1, value=b"x", call=call) == 7


@pytest.mark.parametrize("line", ["", "-- stored put_it            two words again\n"])
def test_a_script_of_two_words_needs_a_name_to_be_remembered_under(
    tmp_path: Path, line: str
) -> None:
    with pytest.raises(SpaceInvalid, match=r"put_value: .*stored"):
        Scripts().of_records(of_two_words(tmp_path, line))


def test_a_script_that_gives_a_shared_key_another_type_is_refused(tmp_path: Path) -> None:
    other = (
        "-- look: at it.\n--\n-- keys   state    zset     ranks\n-- args   none\n-- reply  <it>\n"
    )
    text = f"{other}-- cost   O(1)\n-- full   works\n\nreturn redis.call('ZCARD', STATE)\n"
    (tmp_path / "look.lua").write_text(text)
    with pytest.raises(SpaceInvalid, match=r"put.*state.*zset"):
        check_scripts(folder(tmp_path))


def test_a_folder_without_scripts_is_refused(tmp_path: Path) -> None:
    """The folder is empty, or does not exist."""
    for at in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(SpaceInvalid) as refusal:
            Scripts().of_records(at)
        assert refusal.value.subject == str(at)
