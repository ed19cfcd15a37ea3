"""What a turn continues: conversations and their files, recorded turns, and how a turn is resumed."""
