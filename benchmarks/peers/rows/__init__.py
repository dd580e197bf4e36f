"""One file per peer: what to install, how to start its worker, how to submit."""
