"""Marks synthetic speech inaudibly, and finds the mark again."""

from vivavoce_provenance.detector import Detection, detect
from vivavoce_provenance.watermark import WatermarkStream

__all__ = ["Detection", "WatermarkStream", "detect"]
