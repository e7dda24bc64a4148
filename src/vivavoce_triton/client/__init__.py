"""Clients of a Triton server that serves the model `cosyvoice2` or `vivavoce`.

`http_client.speak_http` requests one utterance and needs no further packages. `load.measure` runs a load test over gRPC
and needs the extra `vivavoce[triton-client]`. docs/triton.md explains the figures.
"""
