"""What all doors of a server share beside the speaker: settings, keys, limits, the request log and metrics."""
