"""Jobs over HTTP: books and long texts that a server speaks in the background."""
