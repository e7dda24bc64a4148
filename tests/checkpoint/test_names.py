import pytest

from vivavoce.checkpoint.names import FLOW_NAMES, LM_NAMES, VOCODER_NAMES
from vivavoce.checkpoint.weights import fold_weight_norm, read_tensors


@pytest.mark.parametrize(
    ("part", "names", "module"),
    [("llm", LM_NAMES, "lm"), ("flow", FLOW_NAMES, "flow"), ("hift", VOCODER_NAMES, "vocoder")],
)
def test_names_lead_there_and_back(babble, models, part, names, module):
    official = read_tensors(babble / f"{part}.pt")
    if part == "hift":
        official = fold_weight_norm(official)
    used = [name for name in official if name not in names.unused]
    ours = [names.to_ours(name) for name in used]
    assert sorted(ours) == sorted(getattr(models, module).state_dict())
    assert [names.to_official(name) for name in ours] == used
