"""Any S3, by aiobotocore, which nobody else imports."""
