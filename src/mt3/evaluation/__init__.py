"""Evaluation: predict, adapt, predict, discard, image by image; resumable."""
