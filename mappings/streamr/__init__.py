"""The Streamr protocol, control layer 0: JSON requests, frames of four items, and sans-IO sessions."""
