"""The command line: one file per command; shared parts are in flags, model, output and console."""
