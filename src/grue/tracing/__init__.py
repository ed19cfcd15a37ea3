"""Readers of a finished trace: show, stats, diagram, viewer, diff and replay."""
