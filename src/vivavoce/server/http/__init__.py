"""HTTP and WebSocket routes, which translate between clients and the dispatcher."""
