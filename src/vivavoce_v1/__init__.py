"""CosyVoice 1: the networks and the flow's stage that later generations do not share."""
