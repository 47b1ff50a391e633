"""The command line: one file a command group. Nothing here imports torch before a command needs it."""
