"""Pure decisions about commands on things and policies, without store and broker."""
