"""Log-probs, values and rewards of given tokens, without gradients."""
