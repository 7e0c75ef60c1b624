"""What learning is compared with: policies that do not learn while they run."""
