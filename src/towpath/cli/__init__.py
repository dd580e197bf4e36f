"""The command line: one file per noun, thin over the engine. Data on stdout, the rest on stderr.

No module here imports the engine before a verb runs, so that `towpath --help` is fast.
"""
