"""Owns the one error that everything about model files raises: a single line that says what to do."""

from __future__ import annotations


class ModelError(ValueError):
    """A model cannot be found, read or used. The message names the file, the value and the remedy."""


class ModelNotHereError(ModelError):
    """A known model whose files are not on this machine; the message names the command that fetches them."""

    is_lacking = True


class TooLittleMemoryError(ModelError):
    """A model that this machine cannot hold; the message says how much is missing."""

    is_lacking = True
