"""Experiments: one file says what is run, one folder has what came of it."""
