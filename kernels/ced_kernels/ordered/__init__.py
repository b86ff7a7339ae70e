"""float32 operations whose sums have one order: the same bits alone, in company, on any CPU."""
