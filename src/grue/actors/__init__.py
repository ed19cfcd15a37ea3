"""Thin shells: receive, step, perform."""
