"""Tests of the benchmarks: who takes part, what they report, and what they leave behind."""
