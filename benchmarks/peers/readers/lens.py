"""TransformerLens's way: its FactoredMatrix, a layer's heads at once, and whole matrices."""

import torch as t
from transformer_lens import FactoredMatrix

from peers.readers.task import Reader, Task, Told
from pvml.modules.transformer import Transformer


def build(model: Transformer) -> Reader:
    """From our model to what does a task.

    All layers at once, as its documentation has it, would take 3.5 GB for GPT-2 small.
    """
    W_E, W_U = model.embed.W_E.detach(), model.unembed.W_U.detach()

    def read(task: Task) -> Told:
        if task.what == "eigenvalues":
            scores = []
            for block in model.blocks:
                circuits = FactoredMatrix(block.attn.W_V, block.attn.W_O)
                values = (W_E @ circuits @ W_U).eigenvalues
                scores.append(values.sum(-1).real / values.abs().sum(-1))
            return Told(found=t.cat(scores).tolist())
        layer, head = task.head
        attn, n = model.blocks[layer].attn, task.d_vocab or len(W_E)
        circuit = W_E[:n] @ FactoredMatrix(attn.W_V[head], attn.W_O[head]) @ W_U[:, :n]
        values = circuit.AB.topk(task.k).values
        return Told(found=values.mean(0, dtype=t.float64).tolist())

    return read
