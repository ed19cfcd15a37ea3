"""The turn's state machine, in parts."""
