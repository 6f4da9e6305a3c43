"""One HTML file, and its figures, from the results of an audit."""
