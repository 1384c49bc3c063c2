"""The verdict words with a meaning beyond one reward."""

LIMIT_KINDS = ("timeout", "memory", "output", "files")
"""The completion ran into a limit: it scores 0."""
INFRASTRUCTURE = "infrastructure"
"""Something other than the completion failed: there is no score."""
