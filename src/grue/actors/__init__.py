"""The actors of a turn. Most receive a message, ask a pure state machine what to do, and do it."""
