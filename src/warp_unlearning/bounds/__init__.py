"""Information-theoretic floors under the error of reconstructing an input from gradients."""
