"""The engine of a real federation: sites that hold their own data, asked in group calls over a transport."""
