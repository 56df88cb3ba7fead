"""Models to keep: a folder with weights, encoder, metrics and a card, and predictions for new rows from it."""

from fedminimax.saved.folder import load_model, save_model

__all__ = ["load_model", "save_model"]
