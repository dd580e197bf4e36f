"""`towpath upload`: send files to a server over HTTP, in parallel, and resume them."""
