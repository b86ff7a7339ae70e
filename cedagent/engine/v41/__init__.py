"""A `deepseek_v41` model behind the engine's family door."""
