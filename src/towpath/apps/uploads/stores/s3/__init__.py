"""Any S3, through aiobotocore, which no other package imports."""
