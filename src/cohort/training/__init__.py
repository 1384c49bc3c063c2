"""The stages that the loop names, and the state that survives a kill."""
