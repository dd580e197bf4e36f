"""What commands are made of: arguments, output, exit codes, the session of a verb."""
