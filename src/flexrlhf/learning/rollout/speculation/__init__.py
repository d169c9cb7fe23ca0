"""Several tokens per pass of the model: some are proposed, and those that it draws itself stay."""
