"""What holds for all tests, and the fixtures that they share."""

import signal

pytest_plugins = ["tests.fixtures"]

# What a shell starts in the background ignores SIGINT and SIGQUIT, and under nohup SIGHUP; so do
# its children, and the programs of the tests would never hear the signals they are sent.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGQUIT, signal.SIG_DFL)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
