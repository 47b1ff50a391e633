"""Two answers of one prompt overwrite each other in the mailbox of a slow caller (vLLM #16863)."""
