"""What the model is compared with: a NumPy forward from the formulae, and Hugging Face's GPT-2."""
