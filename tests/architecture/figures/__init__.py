"""How the code is built, in figures: `make figures`, or `python -m tests.architecture.figures`."""
