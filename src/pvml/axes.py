"""The axes of every tensor, named once: annotations, einsums, trace and docs use these words."""

AXES: dict[str, str] = {
    "batch": "sequences side by side; they never mix",
    "posn": "positions in a sequence, counted from 0; position 0 holds BOS",
    "posn_q": "the position that asks: the row of an attention grid",
    "posn_k": "the position that is read: the column of an attention grid",
    "n_heads": "attention heads of one layer",
    "d_head": "numbers in one head's query, key or value",
    "d_model": "numbers in the residual stream at one position",
    "d_mlp": "numbers in the MLP's hidden layer at one position",
    "d_vocab": "token ids",
    "n_ctx": "positions the model has room for",
    "1": "an axis kept at length 1 so that it broadcasts",
}
