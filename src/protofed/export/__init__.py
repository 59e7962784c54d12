"""Trained models for use elsewhere: exported files and predictions for new images."""
