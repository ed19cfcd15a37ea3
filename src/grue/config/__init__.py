"""The configuration files and settings that users write, checked with pydantic or msgspec."""
