"""What it takes to hold a paper against a computation: claims, the frame of an experiment, the report."""
