"""A minimal space of an application: parcels that come in pieces and are held by tokens."""

from importlib.resources import files

SCRIPTS = files(__name__) / "lua"
