"""Exercise: closing the holes of a batch of rows."""
