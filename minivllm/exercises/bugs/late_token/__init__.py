"""A token is committed after its request was aborted (SGLang #34149)."""
