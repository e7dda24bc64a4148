"""CosyVoice 1: its networks and flow stage, except for the parts that later generations also use."""
