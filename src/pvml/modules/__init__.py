"""The model, one layer a file. `python -m pvml.modules.attention` shows a layer at work."""
