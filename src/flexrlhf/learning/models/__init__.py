"""Load, save and run Hugging Face models and their heads."""
