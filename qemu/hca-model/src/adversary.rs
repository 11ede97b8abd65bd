//! Mistakes of drivers that hardware punishes and a plain emulated HCA forgives: habits of a card that forgives none.
//!
//! Each is legal behaviour of a card. A correct driver does not notice any of them.

/// Mistakes that the card punishes. By default it forgives all of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Adversary {
    /// Refuses an arm doorbell of a CQ that differs from word 1 of the doorbell record.
    pub arm_record: bool,
    /// Refuses atomics to a QP with `qpc.atomic_mode` 0, whatever `rae` says.
    pub atomic_mode: bool,
    /// Refuses commands of ISSI 1 (vport contexts, RMPs, XRC SRQs) before SET_ISSI.
    pub issi: bool,
    /// Keeps state in firmware pages, and fails where software wrote to them.
    pub page_marker: bool,
    /// Leaves sends posted before RTS in the ring until a doorbell.
    pub rts_doorbell: bool,
    /// Refuses DESTROY_UMEM while an object has its ring there.
    pub umem_in_use: bool,
    /// Registers read as all ones in D3hot, and writes are lost.
    pub d3hot: bool,
    /// Executes a WQE from the BlueFlame buffer where it is the next one.
    pub blueflame: bool,
    /// Before DESTROY_CQ, DESTROY_EQ, DESTROY_QP and 2RST_QP are answered, writes to the ring once more,
    /// or to the buffers of the next receive.
    pub late_dma: bool,
    /// Changes memory keys a few WQEs after the UMR, unless a fence waits for it. The seed decides how many.
    pub lazy_umr: Option<u64>,
    /// Reads doorbell record and WQE when the doorbell arrives, and not again before the next doorbell.
    pub eager_fetch: bool,
    /// Least exponent of an acknowledgement time-out: 4.096 us times two to its power.
    pub ack_floor: Option<u8>,
}
