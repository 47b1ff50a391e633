"""Answers: what a log proves, explains, or contradicts. Functions of the event log alone; no engine, no torch."""
