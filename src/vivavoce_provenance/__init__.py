"""Marks synthetic speech inaudibly, and finds the mark again."""

from vivavoce.engine.watermark import WatermarkStream
from vivavoce_provenance.detector import Detection, detect

__all__ = ["Detection", "WatermarkStream", "detect"]
