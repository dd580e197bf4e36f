"""What an older release has left in its store and its database is read and worked on."""
