"""A log in the forms that other programs open: Chrome traces, KV events, and the viewer in one HTML file."""
