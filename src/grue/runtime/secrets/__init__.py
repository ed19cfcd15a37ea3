"""What counts as a secret, and how it is hidden."""
