"""Long runs that look for what is lost on the way: `python -m tests.soak`."""
