"""Models on their targets: lowering for NPUs, bundles over one state, their contracts, targets and hosts."""
