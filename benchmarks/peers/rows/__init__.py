"""One file per peer: what to install, how its worker is started, how it submits."""
