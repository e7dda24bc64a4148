"""What every server door shares beside the speaker: callers, allowances, the book of requests, settings."""
