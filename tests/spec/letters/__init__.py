"""Another application's space: its records are one key each."""

from importlib.resources import files

SCRIPTS = files(__name__) / "lua"
