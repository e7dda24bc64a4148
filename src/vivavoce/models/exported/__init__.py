"""Networks in other runtimes, from files that `vivavoce export` or the official tools made."""
