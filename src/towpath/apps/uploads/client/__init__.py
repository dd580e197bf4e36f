"""`towpath upload`: files sent to a server over HTTP, in parallel, and resumed."""
