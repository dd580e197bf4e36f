"""Tests of what is published: the wheel, the source archive, shell completion."""
