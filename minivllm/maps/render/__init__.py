"""Drawing maps in a terminal."""
