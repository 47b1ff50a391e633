"""What belongs to an aborted request with several answers is never released (vLLM #51629)."""
