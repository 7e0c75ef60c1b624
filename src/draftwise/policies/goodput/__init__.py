"""The default policy: the plan that promises the most tokens per second."""
