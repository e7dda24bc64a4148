"""HTTP and WebSockets: translation only."""
