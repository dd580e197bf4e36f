"""Sources of settings: flags, variables and a file, and the names of settings in each."""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, cast

from towpath.errors import InvalidOption
from towpath.options import OptionField, Options, fields_of, sentences_of

PREFIX = "TOWPATH_"
_LINKED = re.compile(r"TOWPATH_(\w+_)?(SERVICE_(HOST|PORT)(_\w+)?|PORT(_\d+_(TCP|UDP)(_\w+)?)?)")
"""Variables that an orchestrator sets by itself for a service with the name towpath."""
_LINK = re.compile(r"(tcp|udp)://")
UNSAID: Any = object()


class Origin(NamedTuple):
    """The source of a value: its kind, and which flag, variable or file."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name}".rstrip()


class Leaf(NamedTuple):
    """A setting: its dotted name, its option, and the class that has the option."""

    name: str
    field: OptionField
    owner: type[Options]

    @property
    def about(self) -> str:
        """The sentence that describes it."""
        return sentences_of(self.owner).get(self.field.name, "")

    @property
    def variables(self) -> tuple[str, ...]:
        """The variables that set it; the first one that is set decides. For secrets, each also
        has a form with `_FILE`.
        """
        also = (other if other.isupper() else variable_of(other) for other in self.field.info.also)
        return (variable_of(self.name), *also)

    @property
    def keys(self) -> tuple[str, ...]:
        """Its names in a settings file."""
        return (self.name, *(other for other in self.field.info.also if not other.isupper()))


def leaves_of(kind: type[Options], group: str = "") -> Iterator[Leaf]:
    """The settings of a class, in their order; without options that another setting fills."""
    for field in fields_of(kind):
        name = f"{group}.{field.name}" if group else field.name
        if isinstance(field.default, Options):
            yield from leaves_of(type(field.default), name)
        elif not field.info.shared:
            yield Leaf(name, field, _owner(kind, field.name))


def _owner(kind: type[Options], name: str) -> type[Options]:
    """The class that declares the option: *kind*, or a base class."""
    line = [owner for owner in reversed(kind.__mro__) if issubclass(owner, Options)]
    return next(owner for owner in line if name in owner.__struct_fields__)


def variable_of(name: str) -> str:
    """The variable that sets *name*."""
    return f"{PREFIX}{name}".upper().replace(".", "__")


class _File(NamedTuple):
    path: Path
    values: dict[str, Any]


def find_file(path: str | Path | None) -> _File | None:
    """The settings in *path*, or in the current directory's towpath.toml or pyproject.toml."""
    if path is not None:
        return _File(Path(path), _toml(Path(path)))
    if (own := Path("towpath.toml")).is_file():
        return _File(own, _toml(own))
    if (project := Path("pyproject.toml")).is_file():
        table: dict[str, Any] = _toml(project).get("tool", {}).get("towpath", {})
        return _File(project, table) if table else None
    return None


def _toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        rule = f"can't be read: {error.strerror}"
        raise InvalidOption("config", str(path), rule=rule) from error
    except ValueError as error:
        raise InvalidOption("config", str(path), rule=f"is not valid TOML: {error}") from error


class SettingSources:
    """Flags, variables and a file; `origins` has the sources of the values that were read."""

    def __init__(self, flags: dict[str, Any], file: _File | None) -> None:
        self._flags, self._file = flags, file
        self._in_file = file.values if file else {}
        self.origins: dict[str, Origin] = {}

    def mention(self, group: str) -> bool:
        """Whether any source has a value for a group."""
        variables = any(variable.startswith(f"{PREFIX}{group}_".upper()) for variable in os.environ)
        keys = [*self._flags, *self._in_file]
        return variables or any(key == group or key.startswith(f"{group}_") for key in keys)

    def value(self, leaf: Leaf) -> Any:
        """The value of a setting, parsed and checked; UNSAID if no source has one."""
        value, origin = self._find_value(leaf)
        if value is UNSAID:
            return UNSAID
        self.origins[leaf.name] = origin
        try:
            return leaf.field.read(value)
        except InvalidOption as error:
            shown = "…" if leaf.field.info.secret else value
            raise InvalidOption(leaf.name, shown, rule=error.rule) from error.__cause__

    def _find_value(self, leaf: Leaf) -> tuple[Any, Origin]:
        if (value := _value_at(self._flags, leaf.name)) is not UNSAID:
            return value, Origin("flag", f"--{leaf.field.name.replace('_', '-')}")
        for variable in leaf.variables:
            value, name = _variable(variable, secret=leaf.field.info.secret)
            # An orchestrator sets TOWPATH_PORT=tcp://… for a service with the name towpath.
            if value and not _LINK.match(value):
                return value, Origin("variable", name)
        for key in leaf.keys:
            if (value := _value_at(self._in_file, key)) is not UNSAID and self._file:
                return value, Origin("file", str(self._file.path))
        return UNSAID, Origin("default", "")

    def refuse_unknown(
        self, known: list[Leaf], all_there_are: Callable[[], Iterable[Leaf]]
    ) -> None:
        """Raises InvalidOption for a variable, a flag or a key that is not one of *known*."""
        names = {key for leaf in known for key in leaf.keys}
        tables = {leaf.name.rpartition(".")[0] for leaf in known}
        variables = {variable for leaf in known for variable in _settable(leaf)}
        for variable in sorted(os.environ):
            ours = variable.startswith(PREFIX) and not _LINKED.fullmatch(variable)
            if ours and variable not in variables:
                near = [variable_of(leaf.name) for leaf in all_there_are()]
                raise InvalidOption(variable, "…", rule=_unknown(variable, near))
        for name in (*_names(self._flags, names), *_names(self._in_file, names)):
            if name not in names | tables:
                near = [leaf.name for leaf in all_there_are()]
                raise InvalidOption(name, "…", rule=_unknown(name, near))


def _settable(leaf: Leaf) -> Iterator[str]:
    for variable in leaf.variables:
        yield variable
        if leaf.field.info.secret:
            yield f"{variable}_FILE"


def _variable(name: str, *, secret: bool) -> tuple[str, str]:
    """The value of a variable, or of the file that its `_FILE` form names, and which was set."""
    value, path = os.environ.get(name, ""), os.environ.get(f"{name}_FILE", "")
    if not (secret and path):
        return value, name
    if value:
        raise InvalidOption(f"{name}_FILE", path, rule=f"set this or {name}, not both")
    try:
        return Path(path).read_text("utf-8").rstrip("\r\n"), f"{name}_FILE"
    except (OSError, UnicodeDecodeError) as error:
        rule = "must name a text file"
        raise InvalidOption(f"{name}_FILE", path, rule=rule) from error


def _value_at(values: Mapping[str, Any], name: str) -> Any:
    """The value at a dotted name; UNSAID if there is none."""
    first, _, rest = name.partition(".")
    if first not in values:
        return UNSAID
    found = values[first]
    if not rest:
        return found
    if not isinstance(found, Mapping):
        raise InvalidOption(first, "…", rule=f"is a group: write [{first}], then {rest} below it")
    return _value_at(cast("Mapping[str, Any]", found), rest)


def _names(values: Mapping[str, Any], known: set[str], above: str = "") -> Iterator[str]:
    """The dotted names of all values in *values*; a *known* name is not split further."""
    for key, value in values.items():
        name = f"{above}{key}"
        if isinstance(value, Mapping) and value and name not in known:
            yield from _names(cast("Mapping[str, Any]", value), known, f"{name}.")
        else:
            yield name


def _unknown(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
    return f"is not a setting; {hint}"
