"""Owns the specification of the core, as tests: one file a subject, one test a rule."""
