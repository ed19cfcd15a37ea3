"""The actors of a turn. An actor receives a message, asks a pure state machine what to do, and does it."""
