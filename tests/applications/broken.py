"""An application whose module cannot be imported."""

raise RuntimeError("no luck today")
