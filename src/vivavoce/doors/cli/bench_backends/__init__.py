"""Runtimes of the language model that `vivavoce bench offline` compares, one file each.

They stand in this door because it alone may see all that they need: our own stage below, the merged model of `export`
beside it, and packages that nobody else of us imports. Each is a `vivavoce.bench.offline.LanguageModel`; what it needs
is imported when it is made.
"""
