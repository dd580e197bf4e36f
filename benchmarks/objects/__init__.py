"""Uploads measured: a real S3 server, ours before it, and what others do with the same one."""
