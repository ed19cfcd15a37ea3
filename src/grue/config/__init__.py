"""The files and settings that configure grue, checked with pydantic or msgspec."""
