"""Text adventures for an agent to play: the embedded game "The House", and real story files."""
