"""Where voices are kept: a folder, or a redis that several servers share; public ones apart from each owner's own."""
