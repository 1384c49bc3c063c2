"""The policy: loading, adapters, head, backbone, packing, log-probs, optimizer, reference, critic."""
