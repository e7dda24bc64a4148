"""Clients of a Triton server that serves `cosyvoice2` or `vivavoce`.

`http_client.speak_http` requests one utterance without further packages; `load.measure` load-tests gRPC and needs the
extra `vivavoce[triton-client]`. docs/triton.md explains the figures.
"""
