"""Child processes: commands with limits, and children that end with this process."""
