"""The maps: pure functions from a log to a picture. Nothing here touches an engine."""
