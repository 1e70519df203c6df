"""Inference: no gradients, no training mode, and everything as it was afterwards."""

import pytest

from pvml.modules.inference import inference


def test_every_parts_mode_comes_back(make_model, tokens):
    """Within it nothing trains; afterwards each part is in its own mode, also after an error."""
    model = make_model().train()
    model.blocks[1].eval()
    with pytest.raises(ZeroDivisionError), inference(model):
        assert not any(part.training for part in model.modules())
        assert not model(tokens).requires_grad
        _ = 1 / 0

    assert model.training and model.blocks[0].attn.training
    assert not any(part.training for part in model.blocks[1].modules())
    assert model(tokens).requires_grad
