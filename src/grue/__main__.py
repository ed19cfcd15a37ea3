"""`python -m grue`: the same as the command."""

from grue.cli.main import main

main()
