"""The mistakes that are made in each kind of layer, as changes of one step of its formula."""
