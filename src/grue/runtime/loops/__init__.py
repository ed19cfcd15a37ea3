"""Event loops and threads: how code submits work to a loop, gets its result, and interrupts it."""
