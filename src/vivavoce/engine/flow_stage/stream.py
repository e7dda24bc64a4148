"""One sequence's place in the flow stage."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from vivavoce.engine.flow_stage.blocks import Block
from vivavoce.engine.flow_stage.prompts import PromptCache
from vivavoce.engine.flow_stage.state import RowState
from vivavoce.engine.request import Conditioning


@dataclass(frozen=True, eq=False)
class VoiceFeatures:
    """A voice on the device.

    speaker: [bins], projected; mel: [frames, bins] float32, the prompt's.
    """

    speaker: Tensor
    mel: Tensor


class FlowStream:
    """What the stage knows of one sequence; only the stage changes it.

    Args:
        prompts: where the state of its voice's prompt may be.
        upsampling: mel frames per token.
        prompt_bounds: ends of the prompt's blocks, the tokens left out that need the text's as their lookahead.
    """

    def __init__(
        self, conditioning: Conditioning, prompts: PromptCache, upsampling: int, prompt_bounds: tuple[int, ...]
    ) -> None:
        self.conditioning, self.upsampling = conditioning, upsampling
        self.prompt = conditioning.flow_prompt
        self.prompt_blocks = tuple(Block(end, len(self.prompt)) for end in prompt_bounds)
        self.blocks = self.prompt_blocks
        """The prompt's and those of all chunks so far: whoever computes them again cuts them as they were."""
        self.voice = conditioning.flow_key if prompt_bounds else None
        """Key of the prompt's state; None: the prompt is too short to have one."""
        self.prompt_end = prompt_bounds[-1] if prompt_bounds else 0
        """Tokens of the prompt that have a state."""
        self.spoken = 0
        """Speech tokens whose mel was given out."""
        self.state: RowState | None = None
        self.features: VoiceFeatures | None = None
        self.busy = self.closed = False
        self._prompts = prompts

    @property
    def known(self) -> RowState | None:
        """The state that its next chunk of blocks continues: its own, or its voice's."""
        return self.state or self._prompts.get(self.voice)
