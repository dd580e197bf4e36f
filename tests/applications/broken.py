"""An application whose module can't be imported."""

raise RuntimeError("no luck today")
