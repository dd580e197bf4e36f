"""The paths, one file per subject."""
