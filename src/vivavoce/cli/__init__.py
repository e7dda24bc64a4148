"""The command line: one file per command; what they share stands in options, output, model and console."""
