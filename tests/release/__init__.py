"""What is published: wheel, source archive, completion of the shell."""
