"""Load on any OpenAI-compatible server: who asks when, what came back and when, in numbers."""
