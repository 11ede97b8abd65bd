//! Values of context fields and command operands: capability types, QP states and services, MTU
//! codes, masks.

use bitflags::bitflags;

crate::code::codes! {
    /// Capability type of QUERY_HCA_CAP and SET_HCA_CAP.
    CapType(u16) {
        GENERAL = 0x00 "general";
        ETHERNET_OFFLOADS = 0x01 "Ethernet offloads";
        ODP = 0x02 "on-demand paging";
        ATOMIC = 0x03 "atomic";
        ROCE = 0x04 "RoCE";
        IPOIB_OFFLOADS = 0x05 "IPoIB offloads";
        FLOW_TABLE = 0x07 "NIC flow table";
        ESWITCH_FLOW_TABLE = 0x08 "e-switch flow table";
        ESWITCH = 0x09 "e-switch";
        VECTOR_CALC = 0x0b "vector calculation";
        QOS = 0x0c "quality of service";
        DEBUG = 0x0d "debug";
        DEV_MEM = 0x0f "device memory";
        TLS = 0x11 "TLS";
        VDPA_EMULATION = 0x13 "vDPA emulation";
        DEV_EVENT = 0x14 "device events";
        GENERAL_2 = 0x20 "general, second part";
        PORT_SELECTION = 0x25 "port selection";
        ADV_VIRTUALIZATION = 0x26 "advanced virtualisation";
    }

    /// QP state (`qpc.state`).
    QpState(u8) {
        RST = 0x0 "reset";
        INIT = 0x1 "initialized";
        RTR = 0x2 "ready to receive";
        RTS = 0x3 "ready to send";
        SQER = 0x4 "send queue error";
        SQD = 0x5 "send queue drained";
        ERR = 0x6 "error";
        SQ_DRAINING = 0x7 "send queue draining";
        SUSPENDED = 0x9 "suspended";
    }

    /// Service type of a QP (`qpc.st`).
    ServiceType(u8) {
        RC = 0x0 "reliable connection";
        UC = 0x1 "unreliable connection";
        UD = 0x2 "unreliable datagram";
        XRC = 0x3 "extended reliable connection";
        DCI = 0x5 "dynamically connected initiator";
        DCT = 0x6 "dynamically connected target";
        QP0 = 0x7 "QP0";
        QP1 = 0x8 "QP1";
        RAW_ETHERTYPE = 0x9 "raw Ethernet";
        REG_UMR = 0xc "memory registration";
    }

    /// Path migration state (`qpc.pm_state`).
    PmState(u8) {
        ARMED = 0x0 "armed";
        REARM = 0x1 "rearm";
        MIGRATED = 0x3 "migrated";
    }

    /// Source of a QP's receives (`qpc.rq_type`).
    RqType(u8) {
        NON_ZERO_RQ = 0x0 "receive queue of its own";
        SRQ_RQ = 0x1 "shared receive queue, RMP or XRQ";
        CRQ_RQ = 0x2 "CRQ";
        ZERO_LEN_RQ = 0x3 "no receive queue";
    }

    /// Path MTU code (`qpc.mtu`), the same as InfiniBand's.
    Mtu(u8) {
        BYTES_256 = 0x1 "256 bytes";
        BYTES_512 = 0x2 "512 bytes";
        BYTES_1024 = 0x3 "1024 bytes";
        BYTES_2048 = 0x4 "2048 bytes";
        BYTES_4096 = 0x5 "4096 bytes";
        RAW_ETHERNET = 0x7 "raw Ethernet";
    }

    /// Number format of a memory key's translations (`mkc.access_mode_4_2` and `access_mode_1_0`
    /// together).
    AccessMode(u8) {
        PA = 0x0 "physical addresses";
        MTT = 0x1 "MTT list";
        KLMS = 0x2 "KLM list";
        KSM = 0x3 "KSM list";
        SW_ICM = 0x4 "software ICM";
        MEMIC = 0x5 "on-device memory";
    }

    /// State of an EQ (`eqc.st`).
    EqState(u8) {
        ARMED = 0x9 "armed";
        FIRED = 0xa "fired";
    }

    /// State of a CQ (`cqc.st`).
    CqState(u8) {
        SOLICITED_ARMED = 0x6 "armed for solicited completions";
        ARMED = 0x9 "armed";
        FIRED = 0xa "fired";
    }

    /// Health of an EQ (`eqc.status`).
    EqStatus(u8) {
        OK = 0x0 "ok";
        WRITE_FAILURE = 0xa "write failure";
    }

    /// Health of a CQ (`cqc.status`).
    CqStatus(u8) {
        OK = 0x0 "ok";
        OVERFLOW = 0x9 "overflow";
        WRITE_FAILURE = 0xa "write failure";
    }

    /// Size of a CQE (`cqc.cqe_sz`).
    CqeSize(u8) {
        BYTES_64 = 0x0 "64 bytes";
        BYTES_128 = 0x1 "128 bytes";
        BYTES_128_PAD = 0x2 "128 bytes, padded";
    }

    /// State of a raw Ethernet queue (`sqc.state`, `rqc.state`).
    WqState(u8) {
        RST = 0x0 "reset";
        RDY = 0x1 "ready";
        ERR = 0x3 "error";
    }

    /// Choice of a receive queue by a TIR (`tirc.disp_type`).
    TirDisp(u8) {
        DIRECT = 0x0 "one receive queue";
        INDIRECT = 0x1 "a table of receive queues, by hash";
    }

    /// Hash function of a TIR (`tirc.rx_hash_fn`).
    RxHash(u8) {
        NONE = 0x0 "none";
        INVERTED_XOR8 = 0x1 "exclusive or of all bytes, inverted";
        TOEPLITZ = 0x2 "Toeplitz";
    }

    /// List of a NIC vport (`nic_vport_context.allowed_list_type`).
    NicVportList(u8) {
        UC = 0x0 "unicast addresses";
        MC = 0x1 "multicast addresses";
        VLAN = 0x2 "VLANs";
    }

    /// Kind of a flow table (`table_type` of the flow commands).
    FlowTableType(u8) {
        NIC_RX = 0x0 "NIC receive";
        NIC_TX = 0x1 "NIC transmit";
        FDB = 0x4 "e-switch";
        SNIFFER_RX = 0x5 "receive sniffer";
        SNIFFER_TX = 0x6 "transmit sniffer";
        RDMA_RX = 0x7 "RDMA receive";
        RDMA_TX = 0x8 "RDMA transmit";
    }

    /// Action for a frame that no entry of a flow table matches
    /// (`flow_table_context.table_miss_action`).
    TableMissAction(u8) {
        DEF = 0x0 "default";
        FWD = 0x1 "another table";
    }

    /// Group of port counters (`ppcnt_reg.grp`).
    PpcntGroup(u8) {
        IEEE_802_3 = 0x00 "802.3";
        RFC_2863 = 0x01 "RFC 2863";
        RFC_2819 = 0x02 "RFC 2819";
        RFC_3635 = 0x03 "RFC 3635";
        ETHERNET_EXTENDED = 0x05 "Ethernet, extended";
        PER_PRIORITY = 0x10 "per priority";
        PER_TRAFFIC_CLASS = 0x11 "per traffic class";
        PHYSICAL_LAYER = 0x12 "physical layer";
        PHYSICAL_LAYER_STATISTICAL = 0x16 "physical layer, statistical";
        INFINIBAND_PORT = 0x20 "InfiniBand";
    }

    /// Destination of a flow table entry (`dest_format_struct.destination_type`).
    FlowDestination(u8) {
        VPORT = 0x0 "vport";
        FLOW_TABLE = 0x1 "flow table";
        TIR = 0x2 "TIR";
    }

    /// Personality of a port (`cmd_hca_cap.port_type`).
    PortType(u8) {
        IB = 0x0 "InfiniBand";
        ETH = 0x1 "Ethernet";
    }

    /// State of the interface between host and firmware (`initial_seg.nic_interface`).
    NicInterface(u8) {
        FULL_DRIVER = 0x0 "full driver";
        DISABLED = 0x1 "disabled";
        NO_DRAM_NIC = 0x2 "no-DRAM NIC";
        SW_RESET = 0x7 "software reset";
    }

    /// State of a vport (`hca_vport_context.vport_state`, `port_state`): InfiniBand's port states.
    PortState(u8) {
        DOWN = 0x1 "down";
        INIT = 0x2 "initialize";
        ARMED = 0x3 "armed";
        ACTIVE = 0x4 "active";
    }

    /// Physical state of a port (`hca_vport_context.port_physical_state`).
    PortPhysicalState(u8) {
        SLEEP = 0x1 "sleep";
        POLLING = 0x2 "polling";
        DISABLED = 0x3 "disabled";
        TRAINING = 0x4 "port configuration training";
        LINK_UP = 0x5 "link up";
        LINK_ERROR_RECOVERY = 0x6 "link error recovery";
    }

    /// Pages that QUERY_PAGES queries (its op_mod).
    QueryPagesOp(u16) {
        BOOT = 0x1 "boot pages";
        INIT = 0x2 "init pages";
        REGULAR = 0x3 "regular pages";
    }

    /// Action of MANAGE_PAGES (its op_mod).
    ManagePagesOp(u16) {
        CANT_GIVE = 0x0 "cannot give";
        GIVE = 0x1 "give";
        TAKE = 0x2 "take back";
    }

    /// Mode of TEARDOWN_HCA (`teardown_hca_in.profile`).
    TeardownProfile(u16) {
        GRACEFUL_CLOSE = 0x0 "graceful";
        FORCE_CLOSE = 0x1 "force";
        PREPARE_FAST_TEARDOWN = 0x2 "prepare fast teardown";
    }

    /// Access register numbers (`access_reg_in.register_id`).
    RegisterId(u16) {
        PCAP = 0x5001 "PCAP";
        PMLP = 0x5002 "PMLP";
        PMTU = 0x5003 "PMTU";
        PTYS = 0x5004 "PTYS";
        PAOS = 0x5006 "PAOS";
        PFCC = 0x5007 "PFCC";
        PPCNT = 0x5008 "PPCNT";
        PVLC = 0x500f "PVLC";
        PPLM = 0x5023 "PPLM";
        PDDR = 0x5031 "PDDR";
        PCAM = 0x507f "PCAM";
        NODE_DESC = 0x6001 "NODE_DESC";
        HOST_ENDIANNESS = 0x7004 "HOST_ENDIANNESS";
        MCIA = 0x9014 "MCIA";
        MFRL = 0x9028 "MFRL";
        MRTC = 0x902d "MRTC";
        MPEIN = 0x9050 "MPEIN";
        MCQS = 0x9060 "MCQS";
        MCQI = 0x9061 "MCQI";
        MCC = 0x9062 "MCC";
        MCDA = 0x9063 "MCDA";
        MCAM = 0x907f "MCAM";
        DTOR = 0xc00e "DTOR";
    }
}

impl CapType {
    /// The op_mod of QUERY_HCA_CAP: this type's maximum or current values.
    #[must_use]
    pub const fn query_op_mod(self, current: bool) -> u16 {
        (self.0 << 1) | current as u16
    }

    /// The op_mod of SET_HCA_CAP.
    #[must_use]
    pub const fn set_op_mod(self) -> u16 {
        self.0 << 1
    }
}

impl AccessMode {
    /// The values of `mkc.access_mode_4_2` and `mkc.access_mode_1_0`.
    #[must_use]
    pub const fn split(self) -> (u8, u8) {
        (self.0 >> 2 & 7, self.0 & 3)
    }

    /// The mode from `mkc.access_mode_4_2` and `mkc.access_mode_1_0`.
    #[must_use]
    pub const fn joined(access_mode_4_2: u8, access_mode_1_0: u8) -> Self {
        Self((access_mode_4_2 & 7) << 2 | (access_mode_1_0 & 3))
    }
}

impl Mtu {
    /// Payload bytes of a full packet, `None` when the code is not an InfiniBand MTU.
    #[must_use]
    pub const fn bytes(self) -> Option<u32> {
        match self.0 {
            1..=5 => Some(128 << self.0),
            _ => None,
        }
    }
}

bitflags! {
    /// `opt_param_mask` of the QP state commands: which optional parameters the context carries.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct OptParamMask: u32 {
        /// Alternate path.
        const ALT_ADDR_PATH = 1 << 0;
        /// Remote read enable.
        const RRE = 1 << 1;
        /// Remote atomic enable.
        const RAE = 1 << 2;
        /// Remote write enable.
        const RWE = 1 << 3;
        /// P_Key index.
        const PKEY_INDEX = 1 << 4;
        /// Q_Key.
        const Q_KEY = 1 << 5;
        /// `min_rnr_nak`.
        const RNR_TIMEOUT = 1 << 6;
        /// Primary path.
        const PRIMARY_ADDR_PATH = 1 << 7;
        /// `log_sra_max`.
        const SRA_MAX = 1 << 8;
        /// `log_rra_max`.
        const RRA_MAX = 1 << 9;
        /// Path migration state.
        const PM_STATE = 1 << 10;
        /// Transport retry count.
        const RETRY_COUNT = 1 << 12;
        /// RNR retry count.
        const RNR_RETRY = 1 << 13;
        /// ACK time-out.
        const ACK_TIMEOUT = 1 << 14;
        /// LAG transmit affinity.
        const LAG_TX_AFF = 1 << 15;
        /// Primary port.
        const PRI_PORT = 1 << 16;
        /// SRQ number.
        const SRQN = 1 << 18;
        /// Receive CQ.
        const CQN_RCV = 1 << 19;
        /// DC half-duplex handshake.
        const DC_HS = 1 << 20;
        /// DC key.
        const DC_KEY = 1 << 21;
        /// Counter set.
        const COUNTER_SET_ID = 1 << 25;
    }

    /// Access rights of a memory key as byte 2 of its context carries them (`mkc.a`, `rw`, `rr`,
    /// `lw`, `lr`, `umr_en`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct AccessFlags: u8 {
        /// `lr`, local read.
        const LOCAL_READ = 1 << 2;
        /// `lw`, local write.
        const LOCAL_WRITE = 1 << 3;
        /// `rr`, remote read.
        const REMOTE_READ = 1 << 4;
        /// `rw`, remote write.
        const REMOTE_WRITE = 1 << 5;
        /// `a`, remote atomic.
        const ATOMIC = 1 << 6;
        /// `umr_en`, may be changed by a UMR.
        const UMR_EN = 1 << 7;
    }

    /// `flow_context.action`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct FlowAction: u16 {
        /// Lets the frame pass.
        const ALLOW = 1 << 0;
        /// Drops the frame.
        const DROP = 1 << 1;
        /// Forwards it to the destinations.
        const FWD_DEST = 1 << 2;
        /// Counts it.
        const COUNT = 1 << 3;
        /// Adds or removes headers.
        const PACKET_REFORMAT = 1 << 4;
        /// Removes a tunnel's headers.
        const DECAP = 1 << 5;
        /// Changes headers.
        const MOD_HDR = 1 << 6;
        /// Removes a VLAN tag.
        const VLAN_POP = 1 << 7;
        /// Inserts a VLAN tag.
        const VLAN_PUSH = 1 << 8;
    }

    /// Parts of an entry that SET_FLOW_TABLE_ENTRY changes (`set_fte_in.modify_enable_mask`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct FteFields: u8 {
        /// Action.
        const ACTION = 1 << 0;
        /// Flow tag.
        const FLOW_TAG = 1 << 1;
        /// Destinations.
        const DESTINATION_LIST = 1 << 2;
        /// Counters.
        const FLOW_COUNTERS = 1 << 3;
    }

    /// Fields that a TIR hashes (`rx_hash_field_select.selected_fields`).
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct HashFields: u32 {
        /// Source IP address.
        const SRC_IP = 1 << 0;
        /// Destination IP address.
        const DST_IP = 1 << 1;
        /// Source port.
        const L4_SPORT = 1 << 2;
        /// Destination port.
        const L4_DPORT = 1 << 3;
        /// Security parameters index of IPsec.
        const IPSEC_SPI = 1 << 4;
    }

    /// `modify_field_select` of MODIFY_CQ with op_mod 0.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct ModifyCqFields: u32 {
        /// Moderation period.
        const CQ_PERIOD = 1 << 0;
        /// Moderation count.
        const CQ_MAX_COUNT = 1 << 1;
        /// Overrun ignore.
        const OI = 1 << 2;
        /// Event queue.
        const C_EQN = 1 << 3;
    }

    /// `resize_field_select` of MODIFY_CQ with op_mod 1.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct ResizeCqFields: u32 {
        /// New log2 of the number of entries.
        const LOG_CQ_SIZE = 1 << 0;
        /// New page offset.
        const PAGE_OFFSET = 1 << 1;
        /// New page size.
        const LOG_PAGE_SIZE = 1 << 2;
    }

    /// `field_select` of MODIFY_HCA_VPORT_CONTEXT.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct HcaVportFields: u32 {
        /// Port GUID.
        const PORT_GUID = 1 << 0;
        /// Node GUID.
        const NODE_GUID = 1 << 1;
        /// vport state policy.
        const STATE_POLICY = 1 << 2;
    }

    /// `atomic_caps.atomic_operations`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct AtomicOperations: u16 {
        /// Compare and swap.
        const CMP_SWAP = 1 << 0;
        /// Fetch and add.
        const FETCH_ADD = 1 << 1;
        /// Masked compare and swap.
        const EXTENDED_CMP_SWAP = 1 << 2;
        /// Masked fetch and add.
        const EXTENDED_FETCH_ADD = 1 << 3;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contexts::mkc;

    #[test]
    fn access_flags_are_the_third_byte_of_a_memory_key() {
        for (flag, field) in [
            (AccessFlags::LOCAL_READ, mkc::lr),
            (AccessFlags::LOCAL_WRITE, mkc::lw),
            (AccessFlags::REMOTE_READ, mkc::rr),
            (AccessFlags::REMOTE_WRITE, mkc::rw),
            (AccessFlags::ATOMIC, mkc::a),
            (AccessFlags::UMR_EN, mkc::umr_en),
        ] {
            let mut key = [0u8; mkc::SIZE];
            field.set(&mut key, 1u8);
            assert_eq!(key[2], flag.bits(), "{flag:?}");
        }
    }

    #[test]
    fn access_modes_split_and_join() {
        for mode in AccessMode::ALL {
            let (high, low) = mode.split();
            assert_eq!(AccessMode::joined(high, low), *mode);
        }
        assert_eq!(AccessMode::MEMIC.split(), (1, 1));
    }

    #[test]
    fn mtu_codes_and_capability_op_mods() {
        assert_eq!(Mtu::BYTES_256.bytes(), Some(256));
        assert_eq!(Mtu::BYTES_4096.bytes(), Some(4096));
        assert_eq!((Mtu(0).bytes(), Mtu::RAW_ETHERNET.bytes()), (None, None));
        assert_eq!(CapType::ROCE.query_op_mod(true), 9);
        assert_eq!(CapType::ATOMIC.set_op_mod(), 6);
    }
}
