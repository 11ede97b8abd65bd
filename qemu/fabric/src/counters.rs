//! Counters of a switch.

/// Packets by what happened to them since the switch was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FabricCounters {
    /// Packets that ports and the subnet manager put on the wire.
    pub sent: u64,
    /// Packets taken by their destination, duplicates included.
    pub delivered: u64,
    /// Bytes of the delivered packets: LRH to ICRC, or frames without frame check sequence.
    pub delivered_bytes: u64,
    /// Lost by injected loss.
    pub dropped: u64,
    /// Extra copies delivered by injected duplication.
    pub duplicated: u64,
    /// Packets that a later one really overtook.
    pub reordered: u64,
    /// Packets with an injected bit error.
    pub corrupted: u64,
    /// Dropped because a link on the way was down.
    pub link_down: u64,
    /// Times that a link was cut.
    pub cuts: u64,
    /// Dropped because no port has the destination LID.
    pub no_route: u64,
    /// Dropped because the destination's queue was full, or its receiver accepted no packets.
    pub overflow: u64,
    /// Dropped at the sender's port: not its LID or P_Key, a Set without the right, or a frame that is
    /// longer than a port allows.
    pub refused: u64,
    /// Dropped because of a malformed LRH or Ethernet header.
    pub malformed: u64,
}

impl FabricCounters {
    /// Counts `traffic` as if its packets had been sent and delivered.
    pub(crate) const fn add_direct(&mut self, traffic: &Traffic) {
        self.sent += traffic.packets();
        self.delivered += traffic.packets();
        self.delivered_bytes += traffic.request_bytes + traffic.response_bytes;
    }
}

/// Packets and bytes of both directions of requests that were carried out without packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Request packets.
    pub requests: u64,
    /// Their bytes.
    pub request_bytes: u64,
    /// Acknowledgements and READ responses.
    pub responses: u64,
    /// Their bytes.
    pub response_bytes: u64,
}

impl Traffic {
    /// Adds another run's.
    #[inline]
    pub fn add(&mut self, other: &Self) {
        self.requests += other.requests;
        self.request_bytes += other.request_bytes;
        self.responses += other.responses;
        self.response_bytes += other.response_bytes;
    }

    /// Returns the packets of both directions.
    pub(crate) const fn packets(&self) -> u64 {
        self.requests + self.responses
    }
}
