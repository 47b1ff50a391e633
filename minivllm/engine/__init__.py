"""The frontend and the engine core: requests in, tokens and text out."""
