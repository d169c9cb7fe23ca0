"""What the example rewards: kind words, each one once."""

KIND = {"warm", "lovely", "bright", "gentle", "fresh", "sweet", "calm", "pretty"}


def is_kind(completions, **columns):
    """A point for each different kind word."""
    return [float(len(KIND & set(text.split()))) for text in completions]
