"""What jobs make up an experiment, how each is done, and what their results come to."""
