"""Child processes: start one in its own group, exchange bytes with it, end it and what it has started."""
