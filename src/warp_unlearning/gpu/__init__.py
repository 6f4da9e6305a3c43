"""All that is particular to a GPU: captured graphs, precision, faster layers, lanes. Nothing above mentions streams."""
