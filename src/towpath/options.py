"""Options classes: names, bounds, defaults, sentences and secrets of options, declared once.

    class LinkOptions(Options, frozen=True, kw_only=True):
        \"""How links are checked.\"""

        within: Duration = seconds(10)
        \"""How long one check may take.\"""
        attempts: Annotated[int, Meta(ge=1, le=100)] = 3
        \"""How often a link is tried.\"""
        token: Secret | None = None
        \"""Token for the checker; none = it is asked without.\"""

Passed to the settings under a name, the class becomes a group: `links.within` in the file, and
TOWPATH_LINKS__WITHIN. In Python, its constructor has the same names and checks the same bounds.
"""

from __future__ import annotations

import ast
import inspect
import json
import os
import re
import shlex
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from enum import Enum
from functools import cache
from itertools import pairwise
from types import UnionType
from typing import Annotated, Any, NamedTuple, Union, cast, get_args, get_origin

import msgspec

from towpath.clock import parse_duration
from towpath.errors import InvalidOption

HIDDEN = "(hidden)"
"""Shown instead of a secret."""


class FieldInfo(NamedTuple):
    """Annotations of an option's type, beside its bounds."""

    secret: bool = False
    """Whether its value is never shown. It can also be read from a file (`…_FILE`)."""
    read: Callable[[object], object] | None = None
    """Parses text of users, if the type alone does not define how."""
    also: tuple[str, ...] = ()
    """Other names that set it: settings that begin with the group's own name, or, in capitals,
    variables. Variables only for the core: a group is only read if its name is mentioned."""
    shared: str = ""
    """The setting that fills it, if it is not a setting itself."""


def _split_words(value: object) -> object:
    """A list: JSON, or words split like in a shell. No shell runs."""
    if not isinstance(value, str):
        return value
    return json.loads(value) if value.lstrip().startswith("[") else shlex.split(value)


def _variables(value: object) -> object:
    """The variables of this process named in `ONE, TWO` or in a list, if they are set."""
    names = listed(value)
    if not isinstance(names, list) or not all(isinstance(name, str) for name in cast("Any", names)):
        raise ValueError("must be names of variables")
    return {name: os.environ[name] for name in cast("list[str]", names) if name in os.environ}


Secret = Annotated[str, FieldInfo(secret=True)]
"""Text that is never shown: not by `repr`, not in an error, not by `towpath config`."""
Command = Annotated[tuple[str, ...], FieldInfo(read=_split_words)]
"""A program and its arguments."""
Variables = Annotated[Mapping[str, Secret], FieldInfo(read=_variables)]
"""Variables that are passed on; the setting has their names."""
Allowed = Annotated[tuple[str, ...], FieldInfo(shared="calls.allow")]
"""Networks, addresses and hosts that outgoing calls may reach beside public ones, from the
settings.
"""
Signing = Annotated[tuple[Secret, ...], FieldInfo(shared="calls.secrets")]
"""Secrets for signing outgoing calls (`whsec_…`), from the settings, or the secret of `up`."""


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """Base class of options. Its constructor raises InvalidOption for a value out of bounds."""

    def __post_init__(self) -> None:
        for field in fields_of(type(self)):
            field.require(getattr(self, field.name))

    def __repr__(self) -> str:
        text = ", ".join(f"{name}={value!r}" for name, value in self.__rich_repr__())
        return f"{type(self).__name__}({text})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        values = [(field, getattr(self, field.name)) for field in fields_of(type(self))]
        return [
            (field.name, HIDDEN if field.info.secret and value else value)
            for field, value in values
        ]


class OptionField(NamedTuple):
    """An option: its name, type and default, and the FieldInfo of its type."""

    name: str
    hint: Any
    default: Any
    info: FieldInfo

    def read(self, value: object) -> Any:
        """Parse *value*, from a file, a variable or a flag.

        Raises InvalidOption, which does not have the value of a secret.
        """
        return self._convert(self._plain(value), strict=False)

    def require(self, value: object) -> None:
        """Raises InvalidOption if *value* does not fit the option."""
        self._convert(value, strict=True)

    def _plain(self, value: object) -> object:
        """*value* in a form that msgspec converts to the type."""
        kind = _kind(self.hint)
        try:
            if self.info.read:
                return self.info.read(value)
            if kind is timedelta and isinstance(value, int | float | str):
                return parse_duration(self.name, str(value))
            if kind is tuple:
                return listed(value)
            if kind in (dict, Mapping):
                return _named_values(value)
        except ValueError as error:
            rule = getattr(error, "rule", None) or str(error)
            raise self._refusal(value, rule) from (None if self.info.secret else error)
        return (
            _BOOLEAN_WORDS.get(value.lower(), value)
            if kind is bool and isinstance(value, str)
            else value
        )

    def _convert(self, value: object, *, strict: bool) -> Any:
        try:
            return msgspec.convert(value, self.hint, strict=strict, dec_hook=_construct)
        except msgspec.ValidationError as error:
            raise self._refusal(value, _rule(self.hint, str(error))) from None

    def _refusal(self, value: object, rule: str) -> InvalidOption:
        return InvalidOption(self.name, "…" if self.info.secret else value, rule=rule)


@cache
def fields_of(kind: type[Options]) -> tuple[OptionField, ...]:
    """The options of a class, in their order."""
    return tuple(
        OptionField(field.name, field.type, _default(field), _merge_infos(field.type))
        for field in msgspec.structs.fields(kind)
    )


def sentences_of(kind: type) -> dict[str, str]:
    """The docstring of each field of a class, on one line, by name."""
    return {name: " ".join(text.split()) for name, text in docstrings_of(kind).items()}


_CLASS = r"^class %s\b.*?(?=^[^\s)]|\Z)"
"""Matches from the name of a class to the next line that is not indented."""


@cache
def docstrings_of(kind: type) -> dict[str, str]:
    """The docstring of each field of a class, by name. Parses the source of the class."""
    if "." in kind.__qualname__:  # the class was defined in a function
        text = textwrap.dedent(inspect.getsource(kind))
    else:
        # `inspect.getsource` would parse the whole module, which takes ten times as long.
        module = inspect.getsource(sys.modules[kind.__module__])
        source = re.search(_CLASS % kind.__name__, module, re.MULTILINE | re.DOTALL)
        if source is None:
            raise ValueError(f"{kind.__name__} has no source")
        text = source[0]
    [body] = [node.body for node in ast.parse(text).body if isinstance(node, ast.ClassDef)]
    found: dict[str, str] = {}
    for field, text in pairwise(body):
        match field, text:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(sentence))),
            ):
                found[name] = inspect.cleandoc(sentence)
            case _:
                pass
    return found


# ── parsing ──────────────────────────────────────────────────────────────────────────────

_BOOLEAN_WORDS = {"yes": True, "on": True, "y": True, "t": True} | dict.fromkeys(
    ("no", "off", "n", "f"), False
)


def listed(value: object) -> object:
    """The list in `a, b`, or in lines; a list is returned unchanged."""
    if not isinstance(value, str):
        return value
    return [part.strip() for part in value.replace("\n", ",").split(",") if part.strip()]


def _named_values(value: object) -> object:
    """The pairs of `name=value` lines, so that a value may have commas; of a table, or of JSON."""
    if isinstance(value, Mapping):
        return dict(_flat(cast("Mapping[str, Any]", value)))
    if not isinstance(value, str):
        return value
    if value.lstrip().startswith("{"):
        return _named_values(json.loads(value))
    lines = [line.partition("=") for line in value.splitlines() if line.strip()]
    if not all(name.strip() and equals for name, equals, _ in lines):
        raise ValueError("must be name=value, one per line, or JSON")
    return {name.strip(): text.strip() for name, _, text in lines}


def _flat(table: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, str]]:
    """The names and values of *table*; TOML reads `sasl.username = …` as a table in a table."""
    for name, value in table.items():
        match value:
            case Mapping():
                yield from _flat(cast("Mapping[str, Any]", value), f"{above}{name}.")
            case bool():
                yield f"{above}{name}", str(value).lower()
            case _:
                yield f"{above}{name}", str(value)


# ── types ────────────────────────────────────────────────────────────────────────────────


def _kind(hint: Any) -> Any:
    """The class of a type, without annotations and without None."""
    if get_origin(hint) is Annotated:
        return _kind(get_args(hint)[0])
    if get_origin(hint) in (Union, UnionType):
        return _kind(next(part for part in get_args(hint) if part is not type(None)))
    return get_origin(hint) or hint


def _notes(hint: Any) -> Iterator[Any]:
    """All annotations of a type, and of the types inside it."""
    yield from getattr(hint, "__metadata__", ())
    for part in get_args(hint):
        yield from _notes(part)


def _merge_infos(hint: Any) -> FieldInfo:
    infos = [note for note in _notes(hint) if isinstance(note, FieldInfo)]
    return FieldInfo(
        secret=any(info.secret for info in infos),
        read=next((info.read for info in infos if info.read), None),
        also=next((info.also for info in infos if info.also), ()),
        shared=next((info.shared for info in infos if info.shared), ""),
    )


def _default(field: msgspec.structs.FieldInfo) -> Any:
    made = field.default_factory
    return field.default if made is msgspec.NODEFAULT else cast("Callable[[], Any]", made)()


def _construct(kind: type, value: object) -> object:
    """Create a value of a class that msgspec does not know, such as Path."""
    return kind(value)


def _rule(hint: Any, error: str) -> str:
    """The rule for values of a type, as a text."""
    kind, bounds = _kind(hint), [note for note in _notes(hint) if isinstance(note, msgspec.Meta)]
    if isinstance(kind, type) and issubclass(kind, Enum):
        return f"must be one of {', '.join(str(member.value) for member in kind)}"
    if kind is int and bounds and bounds[0].ge is not None and bounds[0].le is not None:
        return f"must be a whole number from {bounds[0].ge} to {bounds[0].le}"
    named = {str: "text", bool: "true or false", int: "a whole number", tuple: "a list"}
    return f"must be {named[kind]}" if kind in named else error[:1].lower() + error[1:]
