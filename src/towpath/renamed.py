"""Old names: whoever uses one is told what it is called now, for one release."""

import sys
from collections.abc import Callable, Mapping
from typing import NoReturn

COMMANDS = {
    "events": "outbox",
    "dead purge": "dead delete",
    "outbox discard": "outbox delete",
    "schedules remove": "schedules delete",
    "schedules forget": "schedules delete --declared",
}
"""Words of the command line behind `towpath`: what they were, and what they are now."""

SETTINGS = {"events": "outbox"}
"""Groups of settings, in the same way."""

PURPOSES = {"events": "outbox"}
"""What `towpath secret` is asked for, in the same way."""


def refuse(module: str, name: str, renamed: Mapping[str, str]) -> AttributeError | ImportError:
    """What a module's `__getattr__` raises for *name*, which it does not have."""
    if name not in renamed:
        return AttributeError(f"module {module!r} has no attribute {name!r}")
    from opcode import opmap  # noqa: PLC0415 -- rarely needed

    words = f"{module}.{name} is now {renamed[name]}"
    # `from module import name` hides the words of an AttributeError behind its own.
    asking = sys._getframe(2)  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] -- nothing else tells who asks
    is_import = asking.f_code.co_code[asking.f_lasti] == opmap["IMPORT_FROM"]
    return ImportError(words, name=module) if is_import else AttributeError(words, name=name)


def methods(owner: str, renamed: Mapping[str, str]) -> Callable[[object, str], NoReturn]:
    """A `__getattr__` for a class whose methods have new names."""

    def __getattr__(_: object, name: str) -> NoReturn:  # noqa: N807 -- what it becomes
        if name in renamed:
            raise AttributeError(f"{owner}.{name} is now {owner}.{renamed[name]}", name=name)
        raise AttributeError(f"{owner!r} object has no attribute {name!r}", name=name)

    return __getattr__
