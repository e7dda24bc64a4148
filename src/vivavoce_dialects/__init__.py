"""Interfaces of other products, spoken by the core: ElevenLabs, DashScope, Wyoming, and CosyVoice's own."""
