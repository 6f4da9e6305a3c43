"""Linear algebra of large matrices: subspaces, and projections that never form a d×d projector."""
