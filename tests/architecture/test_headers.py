"""Every script opens with a header, and the header is true."""

import ast
import inspect
import itertools
import re
from pathlib import Path

import msgspec
import pytest

from tests.architecture.sources import SOURCE, TESTS, python_files, shown
from towpath.embedded import EmbeddedServer
from towpath.engine import codec, model, record
from towpath.engine.engine import Engine
from towpath.engine.inspect import Inspector
from towpath.engine.keys import TYPES, QueueKeys
from towpath.engine.options import SCRIPTED, QueueOptions
from towpath.engine.queues import Queues
from towpath.engine.refusals import CALL_WORDS
from towpath.engine.schedules import Schedules
from towpath.engine.script import ARGS, Header, header_of, lua_text, pieces_of
from towpath.engine.space import SpaceRecord
from towpath.engine.states import MOVES
from towpath.engine.worker_registry import Workers
from towpath.ids import queue_name
from towpath.testing import check_scripts

FIELDS = ["keys", "args", "reply", "moves", "cost", "full", "uses"]
WORD = re.compile(r"'([A-Z]+(?:_[A-Z]+)+)(?: [^']*)?'")
ANSWERS_THAT_ARE_NO_REFUSAL = {"CANCEL_REQUESTED"}
REASONS = re.compile(r"'[A-Z_]+: ")
COMPOSED = {"exchange"}  # its keys and moves are those of the verbs that it consists of

verbs = pytest.mark.parametrize("verb", ARGS)


def header(verb: str) -> Header:
    return header_of(lua_text(verb))


def code_of(piece: str) -> str:
    return "\n".join(line.partition("--")[0] for line in lua_text(piece).splitlines())


@verbs
def test_a_header_is_complete(verb: str) -> None:
    found = header(verb)
    assert found.title.startswith(f"{verb}: ")
    assert [name for name in FIELDS if not found.fields.get(name)] == []


@verbs
def test_the_keys_of_a_header_have_their_known_types(verb: str) -> None:
    if verb in COMPOSED:
        return
    named = [line.split()[:2] for line in header(verb).fields["keys"]]
    assert {name: TYPES[name] for name, _ in named} == dict(named)


@verbs
def test_the_args_of_a_header_are_those_the_engine_sends(verb: str) -> None:
    named = tuple(line.split()[0] for line in header(verb).fields["args"])
    assert (() if named == ("none",) else named) == ARGS[verb]


@verbs
def test_the_moves_of_a_header_are_those_of_the_state_machine(verb: str) -> None:
    if verb in COMPOSED:
        return
    text = " ".join(header(verb).fields["moves"])
    found = set(re.findall(r"(\w+) -> (\w+)", text))
    assert found == {(str(old), str(new)) for old, new in MOVES.get(verb, set())}


@verbs
def test_a_header_names_what_happens_with_memory_full(verb: str) -> None:
    assert header(verb).fields["full"][0] in {"works", "refused"}


@verbs
def test_a_script_uses_each_piece_of_its_header_once(verb: str) -> None:
    pieces = pieces_of(verb)
    assert len(set(pieces)) == len(pieces)
    assert pieces[-1] == verb


def said_by(verb: str) -> set[str]:
    """The words in the text of the verb and of the pieces that only answer for it."""
    pieces = [verb, *({"held"} & set(pieces_of(verb))), *({"remembered"} & set(pieces_of(verb)))]
    found: set[str] = set()
    for piece in pieces:
        text = REASONS.sub("'", code_of(piece))
        found |= set(WORD.findall(text))
    return found - {word for word in found if word in CALL_WORDS}


@verbs
def test_the_reply_of_a_header_names_every_word_of_its_script(verb: str) -> None:
    if verb in COMPOSED:
        return
    promised = {line.split()[0] for line in header(verb).fields["reply"]}
    commands = {"WITHSCORES"}
    assert said_by(verb) - commands <= promised


@verbs
def test_the_engine_knows_every_word_of_a_reply(verb: str) -> None:
    promised = {line.split()[0] for line in header(verb).fields["reply"]}
    words = {word for word in promised if word.isupper()}
    assert words <= codec.REFUSAL_WORDS | ANSWERS_THAT_ARE_NO_REFUSAL


def test_the_engine_knows_every_word_that_refuses_a_whole_call() -> None:
    said: set[str] = set()
    for piece in ("calls", "queue", "layout"):
        said |= set(re.findall(r"error_reply\('([A-Z_]+)", lua_text(piece)))
    assert said == set(CALL_WORDS)


def test_lua_spells_every_key_as_python_does(server: EmbeddedServer) -> None:
    """This includes names with braces and colons, which come last."""
    names = re.findall(
        r"\b([A-Z]+)\b(?= *(?:,|=))", code_of("keys").partition("match")[2] + code_of("more_keys")
    )
    script = f"{lua_text('keys')}\n{lua_text('more_keys')}\nreturn {{ {', '.join(names)} }}"
    told = server.ask("EVAL", script, "1", "{a.b}:queue")
    assert isinstance(told, list)
    spelled = dict(
        zip(names, [str(reply, "utf-8") for reply in told if isinstance(reply, bytes)], strict=True)
    )
    keys = QueueKeys(queue_name("a.b"))
    for name, key in spelled.items():
        python = getattr(keys, name.lower())
        assert key == (python("") if callable(python) else python), name
    assert {name.lower() for name in spelled} == set(TYPES)


# ── Lua uses the names of Python ─────────────────────────────────────────────────────────

OF_SCRIPTS = {
    "anew", "away", "back", "born", "called", "claim", "clock", "decided", "declared", "ids",
    "lasting",
    "most", "over", "plan", "room", "sent", "score", "settle", "span", "wanted", "whole",
}  # fmt: skip
"""Arguments that only engines and scripts tell each other."""
OF_RECORDS = {
    "changed", "completed", "counted", "excused", "expire", "forget_at", "gone_at", "group",
    "keep_turn", "large", "named", "replaces_large", "score", "stored", "tick", "tracebacks",
    "ttl", "turn",
}  # fmt: skip
"""What scripts note about a job that nobody else sees."""
SHADOWED = {"progress": ("id", "token", "text"), "exchange": ("settle", "wish")}
"""Whose argument has the name of a function that they call."""
LUA = sorted((SOURCE / "engine" / "lua").rglob("*.lua"))


def python_names() -> set[str]:
    """The names in the arguments and results of the engine: parameters, fields, options,
    attributes.
    """
    names = {*model.FIELDS, *QueueOptions.__struct_fields__}
    for kind in vars(model).values():
        if inspect.isclass(kind) and issubclass(kind, msgspec.Struct):
            names |= {*kind.__struct_fields__, *vars(kind)}
    for part in (Engine, Inspector, Queues, Schedules, SpaceRecord, Workers):
        for _, method in inspect.getmembers(part, inspect.isfunction):
            names |= set(inspect.signature(method).parameters)
    return names


def job_names() -> set[str]:
    """The names of a job's options and attributes, and the names under which they are stored."""
    seen = {*model.JobInfo.__struct_fields__, *vars(model.JobInfo), *model.NewJob._fields}
    return {*model.FIELDS, *seen, *record.STORED.values()}


def test_arguments_of_scripts_have_the_names_that_callers_know() -> None:
    arguments = {argument for names in ARGS.values() for argument in names}
    assert arguments - python_names() - OF_SCRIPTS == set()
    assert arguments >= OF_SCRIPTS


def test_a_call_is_remembered_under_letters_alone() -> None:
    """Every release can read it; a renamed script keeps its old name here."""
    stored = {verb: header(verb).stored for verb in ARGS if "calls" in pieces_of(verb)}
    assert len(set(stored.values())) == len(stored)
    assert [name for name in stored.values() if not re.fullmatch("[a-z]+", name)] == []


@verbs
def test_the_function_of_a_verb_names_its_arguments_as_the_header_does(verb: str) -> None:
    runs = " ".join(header(verb).fields.get("runs", []))
    found = re.search(r"(?:each|whole)\((\w+)|^(\w+)\(unpack", runs)
    if found is None:
        return  # it reads them one by one, or as a batch
    function = found[1] or found[2]
    parameters = re.search(rf"local function {function}\((.*?)\)", lua_text(verb))
    assert parameters is not None
    assert tuple(re.findall(r"\w+", parameters[1])) == SHADOWED.get(verb, ARGS[verb])


@pytest.mark.parametrize("path", LUA, ids=shown)
def test_options_and_fields_of_jobs_have_their_python_names(path: Path) -> None:
    code = "\n".join(line.partition("--")[0] for line in path.read_text().splitlines())
    options = set(re.findall(r"\boptions\.(\w+)", code)) - set(SCRIPTED.names)
    assert not options, f"not in QueueOptions: {options}"
    fields = set(re.findall(r"\bjob\.(\w+)", code)) - job_names() - OF_RECORDS
    assert not fields, (
        f"a job has no such field; if only scripts use it, add to OF_RECORDS: {fields}"
    )


def test_a_stored_name_differs_only_where_the_table_says_so() -> None:
    table = re.search(r"CHANGED = \{([^}]*)\}", lua_text("record"))
    assert table is not None
    changed = set(re.findall(r"'(\w+)'", table[1]))
    assert changed <= job_names() | OF_RECORDS
    assert set(record.STORED) <= set(vars(model.JobInfo))


def test_lua_writes_records_as_python_reads_them() -> None:
    text = lua_text("record")
    states = re.search(r"STATES = \{([^}]*)\}", text)
    assert states is not None
    assert re.findall(r"'(\w+)'", states[1]) == [str(state) for state in record.STATES]


# ── scripts about records: those of applications, and the engine's own beside its queues ──

FOLDERS = sorted({path.parent for path in (*SOURCE.rglob("*.lua"), *TESTS.rglob("*.lua"))})
SPACES = [
    folder for folder in FOLDERS if folder.name != "lib" and folder != SOURCE / "engine" / "lua"
]
spaces = pytest.mark.parametrize("folder", SPACES, ids=shown)


@spaces
def test_the_scripts_of_a_space_follow_the_rules(folder: Path) -> None:
    check_scripts(folder)


@spaces
def test_the_reply_of_a_spaces_script_names_every_word_it_answers_with(folder: Path) -> None:
    pieces = [*folder.glob("*.lua"), *folder.glob("lib/*.lua")]
    for path in folder.glob("*.lua"):
        found = header_of(path.read_text())
        used = [
            path,
            *(piece for piece in pieces if piece.stem in " ".join(found.fields.get("uses", []))),
        ]
        said = {word for script in used for word in WORD.findall(script.read_text())}
        assert said <= {line.split()[0] for line in found.fields["reply"]}, path


@spaces
def test_every_piece_of_a_space_is_used(folder: Path) -> None:
    texts = [path.read_text() for path in folder.rglob("*.lua")]
    uses = " ".join(line[1] for text in texts for line in re.finditer(r"(?m)^-- uses +(.*)$", text))
    assert {path.stem for path in folder.glob("lib/*.lua")} <= set(uses.split())


# ── applications' scripts use the names of their Python ──────────────────────────────────

APPLICATIONS = [folder for folder in SPACES if SOURCE / "apps" in folder.parents]
applications = pytest.mark.parametrize("folder", APPLICATIONS, ids=shown)
OF_APPLICATIONS = {"bits", "member", "members"}
"""Arguments that only an application and its scripts tell each other."""
NOTED = {"last_length", "short", "status", "true"}
"""Fields that scripts note for scripts, one that outsiders read, and a value."""
HASHED = re.compile(r"redis\.p?call\(\s*'H[A-Z]+',\s*[A-Z]+,([^\n]*)")


def own_names(folder: Path) -> tuple[set[str], set[str]]:
    """The names of parameters, fields and constants of the application with *folder*; and its
    texts.
    """
    [application] = [above for above in folder.parents if above.parent == SOURCE / "apps"]
    names, texts = set[str](), set[str]()
    for path in python_files(application):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.arg(arg=name) | ast.AnnAssign(target=ast.Name(id=name)):
                    names.add(name)
                case ast.FunctionDef(name=name, decorator_list=[ast.Name(id="property")]):
                    names.add(name)
                case ast.Name(id=name, ctx=ast.Store()) if name.isupper():
                    names.add(name.lower())
                case ast.Constant(value=str(text)):
                    texts.add(text)
                case _:
                    pass
    return names, texts


def own_arguments(folder: Path) -> set[str]:
    headers = (header_of(path.read_text()) for path in folder.glob("*.lua"))
    named = {line.split()[0] for found in headers for line in found.fields["args"]}
    return named - {"none"}


@applications
def test_no_two_scripts_of_an_application_are_remembered_under_one_name(folder: Path) -> None:
    stored = [header_of(path.read_text()).stored for path in folder.glob("*.lua")]
    assert len(set(stored)) == len(stored)


@applications
def test_arguments_of_an_applications_scripts_have_python_names(folder: Path) -> None:
    names, _ = own_names(folder)
    assert own_arguments(folder) - names - python_names() - OF_APPLICATIONS == set()


@applications
def test_fields_of_an_applications_records_have_python_names(folder: Path) -> None:
    names, texts = own_names(folder)
    found: set[str] = set()
    for path in folder.rglob("*.lua"):
        code = "\n".join(line.partition("--")[0] for line in path.read_text().splitlines())
        found |= {field for call in HASHED.findall(code) for field in re.findall(r"'(\w+)'", call)}
    found = {field for field in found if field.islower()}  # those in capitals are values
    assert found - names - texts - NOTED == set()


def test_every_exception_of_applications_is_needed() -> None:
    arguments = {name for folder in APPLICATIONS for name in own_arguments(folder)}
    assert arguments >= OF_APPLICATIONS


# ── no other scripts ─────────────────────────────────────────────────────────────────────

RUNS = re.compile(r"(?i:eval|evalsha|fcall)(?i:_ro)?|FUNCTION|LOAD")


def loose_scripts(source: str) -> list[int]:
    """The lines that make Redis run anything but the text of a checked script."""
    found: list[int] = []
    for node in ast.walk(ast.parse(source)):
        words = node.args if isinstance(node, ast.Call) else getattr(node, "elts", [])
        for word, what in itertools.pairwise([*words, None]):
            checked = isinstance(what, ast.Attribute) and what.attr in {"source", "sha"}
            if isinstance(word, ast.Constant) and RUNS.fullmatch(str(word.value)) and not checked:
                found.append(word.lineno)
        if isinstance(node, ast.Attribute) and node.attr in {"eval", "evalsha", "register_script"}:
            found.append(node.lineno)
    return found


def test_no_code_makes_redis_run_an_unchecked_text() -> None:
    loose = {shown(path): loose_scripts(path.read_text()) for path in python_files(SOURCE)}
    assert {path: lines for path, lines in loose.items() if lines} == {}


@pytest.mark.parametrize(
    "source",
    [
        "line.send('EVAL', 'return 1', 0)", "line.send('eval', TEXT, 0)", "x = ('EVALSHA', sha, 1)",
        "client.eval(TEXT, 0)", "line.send('SCRIPT', 'LOAD', text)", "store.command('FCALL', name)",
    ],
)  # fmt: skip
def test_an_unchecked_text_is_found(source: str) -> None:
    assert loose_scripts(source) == [1]
