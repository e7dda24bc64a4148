"""Clients of a Triton server that serves `cosyvoice2` or `vivavoce`.

`http_client.speak_http` asks for one utterance, and needs nothing that vivavoce does not bring along; `load.measure`
puts a load on gRPC, and needs the extra `vivavoce[triton-client]`. docs/triton.md explains the figures.
"""
