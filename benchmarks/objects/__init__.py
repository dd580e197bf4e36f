"""Benchmarks of uploads: a real S3, our server before it, and other clients with the same S3."""
