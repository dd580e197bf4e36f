"""The object stores of uploads: any S3, or a directory of this machine."""
