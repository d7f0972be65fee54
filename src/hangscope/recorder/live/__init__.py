"""What a rank is doing right now: asked through its companion, or seen from outside."""
