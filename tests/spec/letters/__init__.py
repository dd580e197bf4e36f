"""The space of another application: each of its records is one key."""

from importlib.resources import files

SCRIPTS = files(__name__) / "lua"
