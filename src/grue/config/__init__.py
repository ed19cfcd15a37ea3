"""What users configure; pydantic lives here."""
