"""Tests of `towpath demo`."""
