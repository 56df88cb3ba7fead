"""Randomness as a function of its place: keys, and sampling without permutations."""
