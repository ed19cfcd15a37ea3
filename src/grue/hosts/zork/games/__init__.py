"""Text adventures for an agent to play: the embedded house, and real story files."""
