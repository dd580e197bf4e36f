"""The command line: one file per noun, thin over the engine. Data on stdout, the rest on stderr.

Nothing here imports the engine before a verb runs: `towpath --help` must answer at once.
"""
