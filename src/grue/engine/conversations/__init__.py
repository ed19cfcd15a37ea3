"""What was before a turn: conversations, recorded turns, resumption."""
