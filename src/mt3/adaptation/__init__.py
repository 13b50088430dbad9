"""Adapting: a function of parameters, for training and testing alike."""
