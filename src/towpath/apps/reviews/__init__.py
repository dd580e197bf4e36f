"""Reviews: what forges announce is reviewed once, the latest first of all. The row is the truth."""
