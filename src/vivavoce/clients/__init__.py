"""Programs that speak to servers; they know nothing of models."""
