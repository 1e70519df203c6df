"""The command `pvml`: `main.py` finds the command's file, which reads its flags and does it."""
