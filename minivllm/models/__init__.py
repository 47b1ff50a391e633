"""Models: their configuration, their weights on disk, and the layers that compute them."""
