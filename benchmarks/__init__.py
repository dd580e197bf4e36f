"""One script per performance claim; `make bench` runs them all."""
