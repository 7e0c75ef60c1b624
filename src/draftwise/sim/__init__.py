"""The simulator: policies against each other on text whose acceptance is known. numpy only."""
