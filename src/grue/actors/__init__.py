"""The actors of a turn. Each receives a message, asks a pure state machine what to do, and does it."""
