"""From the keys of a Hugging Face config to a model's shape, one family at a time."""
