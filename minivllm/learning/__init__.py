"""Guided lessons and questions: reading their files, filling them from a run, showing them, keeping the progress."""
