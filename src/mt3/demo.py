"""The demo: MT3 and a plain classifier on the embedded digits, in minutes, with honest numbers."""
