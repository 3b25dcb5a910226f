"""What may be reached and what may be shown: egress rules, TLS, URIs, redaction, keys."""
