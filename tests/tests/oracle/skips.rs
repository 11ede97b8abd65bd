//! Why tests of rdma-core's suite are skipped on an HCA: what the suite says, and why it is right here.

/// Reasons on any port, by their first words.
pub const ANYWHERE: &[(&str, &str)] = &[
    ("Can not run the test over non EFA device", "of another vendor's devices"),
    ("ODP is not supported", "no on-demand paging (ODP)"),
    ("Device /dev/dri/renderD128 is not present", "the guest has no GPU"),
    ("cuda-python 12.0+ must be installed", "the guest has no GPU"),
    ("Crypto login details must be supplied", "no encryption of memory (crypto)"),
    ("PCI device must be passed by the user", "of the driver in user space, which has a test of its own"),
    ("Create DC QP is not supported", "no dynamically connected transport (DC)"),
    ("DCI caps is not supported by HW", "no dynamically connected transport (DC)"),
    ("Create Mlx5DV QP is not supported", "no dynamically connected transport (DC)"),
    ("DV QP OOO feature is not supported", "packets of a QP are delivered in order"),
    ("Create Mkey is not supported", "no signatures of memory (T10-DIF)"),
    ("SkipTest occurred on active side", "no tag matching, or no ODP"),
    ("Set LAG affinity is not supported", "one port, so no bonding (LAG)"),
    ("Create custom mr with additional access flags", "no ODP, and no memory without a fixed address"),
    ("NIC flow table does not support", "flow tables change no frames, and match no tunnels"),
    ("VAR allocation is not supported", "no doorbells for virtio"),
    ("UAR allocation (with flag=0)", "BlueFlame's registers are shared"),
    ("Tag matching is not supported", "no tag matching"),
    ("SRQ resize is not supported", "mlx5 has no command for it"),
    ("Packet pacing entry allocation", "no packet pacing"),
    ("Creation or usage of schedule elements", "no schedulers of queues (QoS)"),
    ("Create schedule elements is not supported", "no schedulers of queues (QoS)"),
    ("Extended QP is not supported on this device", "no signatures of memory (T10-DIF)"),
    ("The device doesn't support send_dbr_mode_no_dbr_ext", "send queues have doorbell records"),
];

/// Reasons on an InfiniBand port only.
pub const INFINIBAND: &[(&str, &str)] = &[
    ("Must be run by root on Ethernet link layer", "of Ethernet ports"),
    ("Must be run on Ethernet link layer with Eswitch on", "of Ethernet ports"),
    ("To Create RAW QP must be done by root on Ethernet link layer", "of Ethernet ports"),
    ("Link layer of port=1 is InfiniBand", "of Ethernet ports"),
    ("No supported port is up", "of Ethernet ports"),
];

/// Reasons on an Ethernet port only.
pub const ETHERNET: &[(&str, &str)] = &[
    (
        "Operation not supported (DrTable creation failed",
        "flow tables in the device's own memory, which software writes",
    ),
    ("Operation not supported (DrRule creation failed", "the same, and no flow tables for sending"),
    ("Operation not supported (DrDomain sync failed", "the same"),
    ("Operation not supported (Failed to create dr action modify header", "flow tables change no frames"),
    ("ROCE must be disabled", "the port does RoCE"),
    ("Device mlx5_", "no switch between functions (switchdev)"),
    ("Modifying a QP UDP sport is not supported", "a UDP source port is chosen by its flow label"),
];
