"""Opens connections and keeps them as the operator wants them."""
