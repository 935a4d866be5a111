"""The recorded step run again: as it was, or changed."""
