//! Event types and sub-types (`eqe.event_type`, `eqe.event_sub_type`).

crate::code::codes! {
    /// Type of an event queue entry; also the bit number in `create_eq_in.event_bitmask`.
    EventType(u8) {
        COMP = 0x00 "completion";
        PATH_MIG = 0x01 "path migrated";
        COMM_EST = 0x02 "communication established";
        SQ_DRAINED = 0x03 "send queue drained";
        CQ_ERROR = 0x04 "CQ error";
        WQ_CATAS_ERROR = 0x05 "work queue catastrophic error";
        PATH_MIG_FAILED = 0x07 "path migration failed";
        INTERNAL_ERROR = 0x08 "internal error";
        PORT_CHANGE = 0x09 "port state change";
        CMD = 0x0a "command completion";
        PAGE_REQUEST = 0x0b "page request";
        PAGE_FAULT = 0x0c "page fault";
        NIC_VPORT_CHANGE = 0x0d "NIC vport change";
        ESW_FUNCTIONS_CHANGED = 0x0e "e-switch functions changed";
        VHCA_STATE_CHANGE = 0x0f "vHCA state change";
        WQ_INVAL_REQ_ERROR = 0x10 "invalid request on a work queue";
        WQ_ACCESS_ERROR = 0x11 "access violation on a work queue";
        SRQ_CATAS_ERROR = 0x12 "SRQ catastrophic error";
        SRQ_LAST_WQE = 0x13 "SRQ last WQE reached";
        SRQ_RQ_LIMIT = 0x14 "SRQ limit reached";
        GPIO_EVENT = 0x15 "GPIO";
        PORT_MODULE_EVENT = 0x16 "port module";
        TEMP_WARN_EVENT = 0x17 "temperature warning";
        XRQ_ERROR = 0x18 "XRQ error";
        REMOTE_CONFIG = 0x19 "remote configuration";
        DB_BF_CONGESTION = 0x1a "doorbell or BlueFlame congestion";
        STALL_EVENT = 0x1b "stalled virtual lane";
        DCT_DRAINED = 0x1c "DCT drained";
        DCT_KEY_VIOLATION = 0x1d "DCT key violation";
        FPGA_ERROR = 0x20 "FPGA error";
        FPGA_QP_ERROR = 0x21 "FPGA QP error";
        GENERAL_EVENT = 0x22 "general event";
        MONITOR_COUNTER = 0x24 "monitor counter";
        PPS_EVENT = 0x25 "pulse per second";
        DEVICE_TRACER = 0x26 "device tracer";
        OBJECT_CHANGE = 0x27 "object change";
    }

    /// Sub-type of [`EventType::PORT_CHANGE`].
    PortChange(u8) {
        DOWN = 0x01 "down";
        ACTIVE = 0x04 "active";
        INITIALIZED = 0x05 "initialized";
        LID = 0x06 "LID changed";
        PKEY = 0x07 "P_Key table changed";
        GUID = 0x08 "GUID changed";
        CLIENT_REREG = 0x09 "client reregistration asked for";
    }

    /// Sub-type of [`EventType::GENERAL_EVENT`].
    GeneralEvent(u8) {
        DELAY_DROP_TIMEOUT = 0x01 "delay-drop time-out";
        PCI_POWER_CHANGE_EVENT = 0x05 "PCI power change";
        FW_LIVE_PATCH_EVENT = 0x07 "firmware live patch";
        PCI_SYNC_FOR_FW_UPDATE_EVENT = 0x08 "synchronised reset for a firmware update";
    }

    /// Kind of queue that a QP-form event names (`qp_events.type`).
    EventQueueType(u8) {
        QP = 0x00 "QP";
        RQ = 0x01 "RQ";
        SQ = 0x02 "SQ";
        DCT = 0x06 "DCT";
    }
}

impl EventType {
    /// The word of `create_eq_in.event_bitmask` (0 to 3) and the bit in it that map this type to an
    /// EQ.
    #[must_use]
    pub const fn mask_bit(self) -> (usize, u64) {
        (self.0 as usize / 64, 1 << (self.0 % 64))
    }
}
