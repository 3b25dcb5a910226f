"""Sources: consume deliveries, decode them, check the sender, detect redeliveries, acknowledge."""
