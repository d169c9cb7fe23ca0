"""The tensor side: algorithms, data, models, rollout and training; knows no placement."""
