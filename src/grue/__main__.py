"""`python -m grue` runs the command `grue`."""

from grue.cli.main import main

main()
