"""Finds the inaudible mark of synthetic speech, and signs audio files with manifests."""

from vivavoce.engine.watermark import WatermarkStream
from vivavoce_provenance.detector import Detection, detect

__all__ = ["Detection", "WatermarkStream", "detect"]
