"""Clients of a Triton server that serves `cosyvoice2` or `vivavoce`.

::

    from vivavoce.clients.triton.utterance import Manner, Utterance
    from vivavoce.clients.triton.http_client import HttpOptions, speak_http
    from vivavoce.clients.triton.options import LoadOptions, Mode
    from vivavoce.clients.triton.load import measure

    Utterance(name: str, text: str, reference: Path | bytes | None = None, reference_text: str = "")
    Manner(voice=None, instruct_text=None, seed=None, speed=None)

    speak_http(HttpOptions(utterance, url="localhost:8000", model="cosyvoice2", manner=Manner(), binary=False,
                           timeout_s=120.0)) -> Audio                                 # Audio: samples, sample_rate
    await measure(LoadOptions(server="localhost:8001", utterances=[…], model="cosyvoice2", mode=Mode.STREAMING,
                              manner=Manner(), num_tasks=1, requests=None, warmup=0, use_spk2info_cache=False,
                              chunk_overlap_s=0.0, timeout_s=120.0, folder=None),
                  show=lambda outcome: None, keep_samples=False) -> Report
    Report.failed -> int; .problems() -> list[str]; .keys() -> dict; .to_json() -> dict; .text() -> str;
          .write(folder, label) -> list[Path]; .scored(score) -> Report     # score(outcomes with samples) -> figures

HTTP needs nothing that vivavoce does not bring along; gRPC needs the extra `vivavoce[triton-client]`.
docs/triton-clients.md explains the figures.
"""
