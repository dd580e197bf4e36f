"""The parts that commands use: arguments, output, exit codes, the session of a verb."""
