"""Layers in another form, for a GPU, where torch's own waste much of it on small images.

Each computes what its layer in torch computes, to rounding. Some are written in Triton, which comes with torch's builds
for a GPU and is needed nowhere else.
"""
