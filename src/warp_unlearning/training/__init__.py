"""Training of networks, and the pieces that unlearning shares with it: steps, constraints, schedules, scores."""
