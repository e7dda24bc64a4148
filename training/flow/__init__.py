"""Training of the flow: speech tokens, a speaker and a prompt → mel."""
