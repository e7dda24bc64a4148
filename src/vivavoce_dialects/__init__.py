"""Interfaces of other products that a server can offer: ElevenLabs, DashScope, Wyoming, and CosyVoice's own."""
