"""A core install lacks the packages of CosyVoice's own reading, which alone asks for them."""

import subprocess
import sys

import pytest

PROGRAM = """
import sys

sys.modules["wetext"] = sys.modules["inflect"] = None  # as if they were not installed
import vivavoce

tts = vivavoce.load(device="cpu")
tts.warm_up()
spoken = tts.speak("It costs $5 on May 3.")
recording = spoken.samples, tts.sample_rate
voice = tts.extract_voice(recording, transcript="It costs $5 on May 3.")
assert voice.prompt_text == tts.front_end.text.encode("It costs five dollars on May third.")
try:
    tts.speak("It costs $5.", reading="official")
except vivavoce.VivavoceError as error:
    print(type(error).__name__, error)
assert "wetext" not in {name for name, module in sys.modules.items() if module}
"""


@pytest.mark.slow
def test_a_core_install_speaks_and_names_the_extra() -> None:
    ran = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=600)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith(
        "MissingDependency reading: CosyVoice's own rules need the packages wetext and inflect"
    )
    assert "pip install 'vivavoce[official]'" in ran.stdout
