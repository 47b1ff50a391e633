"""Exercises of the kind "build": the learner writes a part of the engine."""
