"""vLLM's controller, and the cost model, guard and acceptance tables that engines share."""
