"""Integer expressions over the sizes of dims: their normal form, bounds, relations and texts."""
