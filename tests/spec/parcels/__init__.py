"""An application's space, as small as it can be: things that come in pieces, held by tokens."""

from importlib.resources import files

SCRIPTS = files(__name__) / "lua"
