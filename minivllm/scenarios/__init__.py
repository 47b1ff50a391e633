"""Named runs, and the driver that pins arrivals and aborts to steps of the engine core."""
