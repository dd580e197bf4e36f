"""`towpath demo`."""
