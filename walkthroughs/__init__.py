"""Guided lessons: each folder holds one, in the format of `minivllm.learning.lesson`."""
