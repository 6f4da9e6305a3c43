"""Which examples were forgotten? Attacks that score examples, and what their scores prove."""
