"""Exercises: the learner's file replaces a part of the running engine, and checks by pytest judge it."""
