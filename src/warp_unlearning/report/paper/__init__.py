"""The paper's numbers as data, and studies rendered beside them: Markdown and figures from results."""
