"""Where the bytes of uploads end up: any S3, or a directory of this machine."""
