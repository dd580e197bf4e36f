"""Code that runs in the peers' own environments: the standard library alone."""
