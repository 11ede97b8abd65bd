//! Capabilities: maximum and current, of a ConnectX-5 with one port, and nothing that is not modelled.

pub(crate) mod ethernet;

use crate::object::walk::MAX_INDIRECTION;
use crate::object::{compression, memic, reserved};
use crate::profile::{Profile, Strictness};
use mlx5_prm::caps::{atomic_caps, cmd_hca_cap, cmd_hca_cap_2, device_mem_cap};
use mlx5_prm::later;
use mlx5_prm::value::CapType;
use mlx5_prm::{Field, Kind};

/// Bytes of a capability block on the wire.
pub const BLOCK: usize = 4096;

/// Largest `log_max_qp` that software may ask for.
pub const LOG_MAX_QP: u32 = 18;
/// log2 of CQs.
pub const LOG_MAX_CQ: u32 = 16;
/// log2 of EQs.
pub const LOG_MAX_EQ: u32 = 6;
/// log2 of memory keys.
pub const LOG_MAX_MKEY: u32 = 18;
/// log2 of shared receive queues of each kind.
pub const LOG_MAX_SRQ: u32 = 14;
/// log2 of protection domains.
pub const LOG_MAX_PD: u32 = 14;
/// log2 of user contexts.
pub const LOG_MAX_UCTX: u32 = 12;
/// log2 of user memories.
pub const LOG_MAX_UMEM: u32 = 16;
/// log2 of XRC domains.
pub const LOG_MAX_XRCD: u32 = 12;
/// log2 of transport domains.
pub const LOG_MAX_TRANSPORT_DOMAIN: u32 = 12;
/// log2 of entries of a ring of any kind but an EQ or a CQ.
pub const LOG_MAX_QP_SZ: u32 = 15;
/// log2 of CQEs in a CQ.
pub const LOG_MAX_CQ_SZ: u32 = 22;
/// log2 of EQEs in an EQ.
const LOG_MAX_EQ_SZ: u32 = 22;
/// log2 of outstanding reads and atomics.
pub const LOG_MAX_RA: u32 = 4;
/// log2 of the longest message.
pub const LOG_MAX_MSG: u32 = 30;
/// log2 of the largest copy in bytes that a send queue takes.
pub const LOG_MAX_COPY: u32 = 15;
/// log2 of the largest UAR page, in units of 4 KiB: 1 MiB.
pub const LOG_MAX_UAR_PAGE: u32 = 8;
/// Device clock in kHz: 156.25 MHz.
pub const DEVICE_FREQUENCY_KHZ: u32 = 156_250;
/// Largest number of Q counter sets.
pub const MAX_QP_CNT: u32 = 0xff;

/// log2 of the most numbers that are handed out of one kind.
const LOG_LARGEST_TABLE: u32 = 20;
/// Least `log_max_qp`: what the device needs itself, whatever software asks for (iPXE's mistakes of byte order ask for 0).
const LOG_MIN_QP: u32 = 4;

/// Names of the general capabilities that SET_HCA_CAP may change.
const SETTABLE: &[&str] = &[
    "log_max_qp",
    "pkey_table_size",
    "cmdif_checksum",
    "log_uar_page_sz",
    "uar_4k",
    "cache_line_128byte",
    "release_all_pages",
];

/// The device's capabilities.
#[derive(Clone, Debug)]
pub struct Caps {
    general_max: Vec<u8>,
    general_current: Vec<u8>,
    atomic: Vec<u8>,
    device_memory: Vec<u8>,
    general_2: Vec<u8>,
    /// Types of an Ethernet port; empty on InfiniBand.
    ethernet_offloads: Vec<u8>,
    roce: Vec<u8>,
    flow_tables: Vec<u8>,
    quality_of_service: Vec<u8>,
}

/// Why SET_HCA_CAP was refused: the field and what is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadCapability {
    /// `structure.field`.
    pub field: String,
    /// In words.
    pub text: String,
}

impl Caps {
    /// The capabilities of a device as `profile` makes it.
    #[must_use]
    pub fn new(profile: &Profile) -> Self {
        let general_max = general(profile);
        let mut general_current = general_max.clone();
        cmd_hca_cap::log_max_qp.set(&mut general_current, profile.log_max_qp.min(LOG_MAX_QP as u8));
        cmd_hca_cap::cmdif_checksum.set(&mut general_current, 0u8);
        cmd_hca_cap::cache_line_128byte.set(&mut general_current, 0u8);
        cmd_hca_cap::log_uar_page_sz.set(&mut general_current, 0u8);
        cmd_hca_cap::uar_4k.set(&mut general_current, 0u8);
        cmd_hca_cap::num_of_uars_per_page.set(&mut general_current, 1u8);
        cmd_hca_cap::release_all_pages.set(&mut general_current, 0u8);
        let mut atomic = vec![0; 256];
        let habits = &profile.habits;
        atomic_caps::supported_atomic_req_8B_endianness_mode_1.set(&mut atomic, !habits.no_atomic_byte_order);
        // Compare-swap and fetch-add of 8 bytes.
        let (operations, sizes) = habits.atomics.unwrap_or((3, 8));
        atomic_caps::atomic_operations.set(&mut atomic, operations);
        atomic_caps::atomic_size_qp.set(&mut atomic, sizes);
        atomic_caps::atomic_size_dc.set(&mut atomic, 0u8);
        let device_memory =
            if cmd_hca_cap::device_memory.is_set(&general_max) { device_memory() } else { Vec::new() };
        let mut general_2 = vec![0; cmd_hca_cap_2::SIZE];
        later::CAP2_LOG_MAX_NUM_RESERVED_QPN.set(&mut general_2, reserved::LOG_NUMBERS);
        later::CAP2_LOG_RESERVED_QPN_GRANULARITY.set(&mut general_2, reserved::LOG_RANGE);
        later::CAP2_LOG_RESERVED_QPN_MAX_ALLOC.set(&mut general_2, reserved::LOG_RANGE);
        let [ethernet_offloads, roce, flow_tables, quality_of_service] = if profile.card.is_ethernet() {
            [ethernet::offloads(), ethernet::roce(), ethernet::flow_tables(), ethernet::quality_of_service()]
        } else {
            Default::default()
        };
        let mut caps = Self {
            general_max,
            general_current,
            atomic,
            device_memory,
            general_2,
            ethernet_offloads,
            roce,
            flow_tables,
            quality_of_service,
        };
        for (kind, field, value) in profile.card.other_capabilities {
            // A type that is not modelled has no bytes.
            if let Some(block) = caps.other_mut(*kind).filter(|block| !block.is_empty()) {
                field.set(block, *value);
            }
        }
        caps
    }

    /// The block of a type that has fields in [`Card::other_capabilities`](crate::Card).
    fn other_mut(&mut self, kind: CapType) -> Option<&mut Vec<u8>> {
        match kind {
            CapType::ATOMIC => Some(&mut self.atomic),
            CapType::DEV_MEM => Some(&mut self.device_memory),
            CapType::GENERAL_2 => Some(&mut self.general_2),
            CapType::ETHERNET_OFFLOADS => Some(&mut self.ethernet_offloads),
            CapType::ROCE => Some(&mut self.roce),
            CapType::FLOW_TABLE => Some(&mut self.flow_tables),
            _ => None,
        }
    }

    /// The block that QUERY_HCA_CAP answers for `kind`, `None` for a type that firmware does not know.
    #[must_use]
    pub fn query(&self, kind: CapType, current: bool) -> Option<&[u8]> {
        match kind {
            CapType::GENERAL if current => Some(&self.general_current),
            CapType::GENERAL => Some(&self.general_max),
            CapType::ATOMIC => Some(&self.atomic),
            CapType::DEV_MEM => Some(&self.device_memory),
            CapType::GENERAL_2 => Some(&self.general_2),
            CapType::ETHERNET_OFFLOADS => Some(&self.ethernet_offloads),
            CapType::ROCE => Some(&self.roce),
            CapType::FLOW_TABLE => Some(&self.flow_tables),
            CapType::QOS => Some(&self.quality_of_service),
            // Known types of which nothing is modelled: all zero.
            CapType::ODP
            | CapType::IPOIB_OFFLOADS
            | CapType::ESWITCH
            | CapType::VECTOR_CALC
            | CapType::DEBUG => Some(&[]),
            _ => None,
        }
    }

    /// SET_HCA_CAP for the general type: `wanted` may be shorter than the structure, the rest is then zero. A lenient device
    /// leaves fields that cannot be set as they are, and says which they were.
    ///
    /// # Errors
    /// The first field that may not have the value asked for; nothing is changed then.
    pub fn set_general(
        &mut self,
        wanted: &[u8],
        strictness: Strictness,
    ) -> Result<Vec<BadCapability>, BadCapability> {
        let mut block = vec![0; cmd_hca_cap::SIZE];
        for (to, from) in block.iter_mut().zip(wanted) {
            *to = *from;
        }
        let (mut bad, mut ignored) = (None, Vec::new());
        let mut changed = self.general_current.clone();
        cmd_hca_cap::LAYOUT.visit(&mut |leaf| {
            let Kind::Field(_) = leaf.kind else { return };
            let field = Field { bit_offset: leaf.bit_offset, bit_width: leaf.bit_width };
            let (asked, current, max) =
                (field.get(&block), field.get(&self.general_current), field.get(&self.general_max));
            if bad.is_some() || asked == current {
                return;
            }
            let name = leaf.path.name;
            let settable = SETTABLE.contains(&name);
            let text = if !settable {
                format!("{asked:#x} asked, fixed at {current:#x}")
            } else if asked > max {
                format!("{asked:#x} asked, at most {max:#x}")
            } else {
                field.set(&mut changed, asked);
                return;
            };
            let found = BadCapability { field: format!("cmd_hca_cap.{name}"), text };
            if !settable && strictness == Strictness::Lenient {
                ignored.push(found);
            } else {
                bad = Some(found);
            }
        });
        // Bits without a name that the device shows itself may come back as they are.
        let mut strange = block.clone();
        for (bits, own) in strange.iter_mut().zip(&self.general_current) {
            *bits &= !own;
        }
        if let Some((offset, bits)) = cmd_hca_cap::LAYOUT.reserved_bits_set(&strange) {
            let field = format!("cmd_hca_cap+{offset:#x}");
            let found = BadCapability { field, text: format!("reserved bits {bits:#010x} set") };
            match strictness {
                Strictness::Lenient => ignored.push(found),
                Strictness::Strict => bad = bad.or(Some(found)),
            }
        }
        if let Some(bad) = bad {
            return Err(bad);
        }
        let log_max_qp = cmd_hca_cap::log_max_qp.get32(&changed).max(LOG_MIN_QP);
        cmd_hca_cap::log_max_qp.set(&mut changed, log_max_qp);
        let uars = if cmd_hca_cap::uar_4k.is_set(&changed) {
            1 << cmd_hca_cap::log_uar_page_sz.get32(&changed)
        } else {
            1u32
        };
        cmd_hca_cap::num_of_uars_per_page.set(&mut changed, uars);
        self.general_current = changed;
        Ok(ignored)
    }

    /// SET_HCA_CAP for the atomic type.
    ///
    /// # Errors
    /// The first field that may not have the value asked for; nothing is changed then.
    pub fn set_atomic(&mut self, wanted: &[u8]) -> Result<(), BadCapability> {
        let mode = atomic_caps::atomic_req_8B_endianness_mode.get32(wanted);
        if mode > u32::from(atomic_caps::supported_atomic_req_8B_endianness_mode_1.is_set(&self.atomic)) {
            return Err(BadCapability {
                field: "atomic_caps.atomic_req_8B_endianness_mode".to_owned(),
                text: format!("{mode} is not supported"),
            });
        }
        atomic_caps::atomic_req_8B_endianness_mode.set(&mut self.atomic, mode);
        Ok(())
    }

    /// Whether 8-byte atomics answer in the host's byte order.
    #[must_use]
    pub fn atomics_in_host_order(&self) -> bool {
        atomic_caps::atomic_req_8B_endianness_mode.get32(&self.atomic) == 1
    }

    /// A field of the largest general capabilities.
    #[must_use]
    pub fn max(&self, field: Field) -> u32 {
        field.get32(&self.general_max)
    }

    /// How many objects of a kind there can be whose number's log2 `field` says. Host memory ends before a table of a million does.
    #[must_use]
    pub(crate) fn table(&self, field: Field) -> u32 {
        1 << self.max(field).min(LOG_LARGEST_TABLE)
    }

    /// A field of the current general capabilities.
    #[must_use]
    pub fn current(&self, field: mlx5_prm::Field) -> u32 {
        field.get32(&self.general_current)
    }

    /// Whether commands and mailboxes must be signed.
    #[must_use]
    pub fn signatures(&self) -> bool {
        self.current(cmd_hca_cap::cmdif_checksum) == 3
    }
}

fn general(profile: &Profile) -> Vec<u8> {
    use cmd_hca_cap as c;
    use cmd_hca_cap::dtor;
    let mut block = vec![0u8; cmd_hca_cap::SIZE];
    let values: &[(mlx5_prm::Field, u32)] = &[
        (c::log_max_srq_sz, LOG_MAX_QP_SZ),
        (c::log_max_qp_sz, LOG_MAX_QP_SZ),
        (c::log_max_qp, LOG_MAX_QP),
        (c::log_max_srq, LOG_MAX_SRQ),
        (c::log_max_cq_sz, LOG_MAX_CQ_SZ),
        (c::log_max_cq, LOG_MAX_CQ),
        (c::log_max_eq_sz, LOG_MAX_EQ_SZ),
        (c::log_max_mkey, LOG_MAX_MKEY),
        (c::log_max_eq, LOG_MAX_EQ),
        (c::fast_teardown, 1),
        (c::release_all_pages, 1),
        (c::force_teardown, 1),
        (c::max_indirection, MAX_INDIRECTION),
        // Indirect keys of parts of one size.
        (c::fixed_buffer_size, 1),
        (c::log_max_mrw_sz, 0x40),
        (c::log_max_bsf_list_size, 0),
        (c::log_max_klm_list_size, 16),
        (c::log_max_ra_req_qp, LOG_MAX_RA),
        (c::log_max_ra_res_qp, LOG_MAX_RA),
        (c::cache_line_128byte, 1),
        (c::gid_table_size, 0),
        (c::out_of_seq_cnt, 1),
        (c::vport_counters, 1),
        // Counters of QUERY_VNIC_ENV.
        (c::vnic_env_queue_counters, 1),
        (c::vnic_env_cq_overrun, 1),
        (c::eq_overrun_count, 1),
        (c::invalid_command_count, 1),
        (c::quota_exceeded_count, 1),
        (c::retransmission_q_counters, 1),
        (c::enhanced_error_q_counters, 1),
        (c::max_qp_cnt, MAX_QP_CNT),
        (c::rts2rts_qp_counters_set_id, 1),
        (c::pkey_table_size, 0),
        (c::vport_group_manager, 1),
        (c::vhca_group_manager, 0),
        (c::ib_virt, 1),
        (c::local_ca_ack_delay, 16),
        (c::port_type, 0),
        (c::num_ports, 1),
        // RC packets of a path with `fl` stay inside the device, whatever the link does.
        (c::fl_rc_qp_when_roce_disabled, 1),
        (c::log_max_msg, LOG_MAX_MSG),
        (c::stat_rate_support, 1),
        (c::cqe_version, 1),
        (c::compact_address_vector, 1),
        (c::cmdif_checksum, 3),
        // A key's whole size, atomic right and indirection can be changed by a UMR; fence 0 is strong ordering.
        (c::umr_modify_entity_size_disabled, 0),
        (c::umr_modify_atomic_disabled, 0),
        (c::umr_indirect_mkey_disabled, 0),
        (c::umr_fence, 0),
        (c::umr_extended_translation_offset, 1),
        (c::umr_ptr_rlky, 1),
        // Memory windows (type 1, 2A, 2B) and local invalidation.
        (c::imaicl, 1),
        (c::relaxed_ordering_write, 1),
        (c::relaxed_ordering_read, 1),
        (c::relaxed_ordering_write_umr, 1),
        (c::relaxed_ordering_read_umr, 1),
        (c::sctr_data_cqe, 1),
        (c::atomic, 1),
        (c::cq_oi, 1),
        (c::cq_resize, 1),
        (c::cq_moderation, 1),
        (c::cq_eq_remap, 1),
        (c::block_lb_mc, 1),
        (c::cq_period_start_from_cqe, 1),
        (c::qkv, 1),
        (c::pkv, 1),
        (c::set_deth_sqpn, 1),
        (c::xrc, 1),
        (c::ud, 1),
        (c::uc, 1),
        (c::rc, 1),
        (c::log_pg_sz, 12),
        (c::bf, 1),
        (c::driver_version, 1),
        (c::log_bf_reg_size, 9),
        (c::max_wqe_sz_sq, 0x400),
        (c::max_wqe_sz_rq, 0x200),
        (c::max_qp_mcg, 0xf0),
        (c::log_max_mcg, 21),
        (c::log_max_transport_domain, LOG_MAX_TRANSPORT_DOMAIN),
        (c::log_max_pd, LOG_MAX_PD),
        (c::log_max_xrcd, LOG_MAX_XRCD),
        (c::log_max_rmp, LOG_MAX_SRQ),
        (c::log_max_wq_sz, LOG_MAX_QP_SZ),
        (c::log_uar_page_sz, LOG_MAX_UAR_PAGE),
        (c::uar_4k, 1),
        (c::num_of_uars_per_page, 1 << LOG_MAX_UAR_PAGE),
        (c::device_frequency_mhz, DEVICE_FREQUENCY_KHZ / 1000),
        (c::device_frequency_khz, DEVICE_FREQUENCY_KHZ),
        (c::native_port_num, 1),
        (c::log_max_uctx, LOG_MAX_UCTX),
        (c::log_max_umem, LOG_MAX_UMEM),
        (c::umem_uid_0, 1),
        (c::cqe_128_always, 1),
        (c::cqe_compression, 1),
        (c::cqe_compression_128, 1),
        (c::mini_cqe_resp_stride_index, 1),
        (c::cqe_compression_max_num, compression::MOST as u32),
        (c::hca_cap_2, 1),
        (c::mcam_reg, 1),
        (c::pcam_reg, 1),
        (c::device_memory, 1),
        (later::CAP_DMA_MMO_SQ, 1),
        (later::CAP_LOG_DMA_MMO_MAX_SIZE, LOG_MAX_COPY),
    ];
    let of_medium = if profile.card.is_ethernet() { ethernet::GENERAL } else { &[] };
    for (field, value) in values.iter().chain(of_medium).chain(profile.card.capabilities) {
        field.set(&mut block, *value);
    }
    c::general_obj_types.set(&mut block, 1u64 << later::RESERVED_QPN_OBJECT);
    c::uar_sz.set(&mut block, profile.card.log_bar_mib);
    later::CAP_TERMINATE_SCATTER_LIST_MKEY.set(&mut block, profile.habits.terminator.is_some());
    dtor.set(&mut block, !profile.habits.default_timeouts.is_empty());
    for &(offset, bits) in &profile.misbehaviour.hidden_capabilities {
        if let Some(dword) = offset.checked_add(4).and_then(|end| block.get_mut(offset..end)) {
            for (byte, hide) in dword.iter_mut().zip(bits.to_be_bytes()) {
                *byte &= !hide;
            }
        }
    }
    block
}

fn device_memory() -> Vec<u8> {
    use device_mem_cap as d;
    let mut block = vec![0; d::SIZE];
    d::memic.set(&mut block, 1u8);
    d::log_min_memic_alloc_size.set(&mut block, memic::LOG_UNIT);
    d::log_max_memic_addr_alignment.set(&mut block, memic::LOG_MAX_ALIGNMENT);
    d::memic_bar_start_addr.set(&mut block, memic::BAR_OFFSET as u64);
    d::memic_bar_size.set(&mut block, memic::SIZE as u32);
    d::max_memic_size.set(&mut block, memic::SIZE as u32);
    d::memic_operations.set(&mut block, memic::Operation::ALL);
    // One byte.
    later::MEMIC_INCREMENT_SIZES.set(&mut block, 1u8);
    later::MEMIC_TEST_AND_SET_SIZES.set(&mut block, 1u8);
    block
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn software_sets_what_it_may_and_nothing_else() {
        let mut caps = Caps::new(&Profile::node(0));
        let mut wanted = caps.query(CapType::GENERAL, true).unwrap_or(&[]).to_vec();
        assert_eq!(cmd_hca_cap::log_max_qp.get32(&wanted), 14);
        cmd_hca_cap::log_max_qp.set(&mut wanted, 18u8);
        assert_eq!(caps.set_general(&wanted, Strictness::Strict), Ok(Vec::new()));
        assert_eq!(caps.current(cmd_hca_cap::log_max_qp), 18);
        cmd_hca_cap::log_max_qp.set(&mut wanted, 19u8);
        for strictness in [Strictness::Strict, Strictness::Lenient] {
            let refused = caps.set_general(&wanted, strictness).map_err(|e| e.field);
            assert_eq!(refused, Err("cmd_hca_cap.log_max_qp".to_owned()));
        }
        cmd_hca_cap::log_max_qp.set(&mut wanted, 12u8);
        cmd_hca_cap::dct.set(&mut wanted, 1u8);
        let refused = caps.set_general(&wanted, Strictness::Strict).map_err(|e| e.field);
        assert_eq!(refused, Err("cmd_hca_cap.dct".to_owned()));
        assert_eq!(caps.current(cmd_hca_cap::log_max_qp), 18, "a refused command changes nothing");
        let ignored = caps.set_general(&wanted, Strictness::Lenient).expect("taken");
        assert_eq!(ignored.len(), 1, "{ignored:?}");
        assert_eq!((caps.current(cmd_hca_cap::log_max_qp), caps.current(cmd_hca_cap::dct)), (12, 0));
    }

    #[test]
    fn every_other_field_is_read_only_and_every_other_bit_reserved() {
        let profile = Profile::node(0);
        let current = Caps::new(&profile).query(CapType::GENERAL, true).unwrap_or(&[]).to_vec();
        let mut fields = 0;
        cmd_hca_cap::LAYOUT.visit(&mut |leaf| {
            let Kind::Field(_) = leaf.kind else { return };
            let name = leaf.path.name;
            if SETTABLE.contains(&name) {
                return;
            }
            fields += 1;
            let field = Field { bit_offset: leaf.bit_offset, bit_width: leaf.bit_width };
            let mut wanted = current.clone();
            field.set(&mut wanted, field.get(&current) ^ 1);
            let mut caps = Caps::new(&profile);
            let refused = caps.set_general(&wanted, Strictness::Strict).map_err(|e| e.field);
            assert_eq!(refused, Err(format!("cmd_hca_cap.{name}")));
            let ignored = caps.set_general(&wanted, Strictness::Lenient).expect("taken");
            assert_eq!(ignored.len(), 1, "{ignored:?}");
            assert_eq!(caps.query(CapType::GENERAL, true), Some(&current[..]));
        });
        assert!(fields > 150, "{fields}");
        // The mistakes of iPXE, and any other bit that has no name.
        for (offset, bits) in [(0x10, 1 << 8), (0x08, 1), (0x0c, 1 << 31)] {
            let mut wanted = current.clone();
            let dword = Field::bits(offset, 31, 0);
            let with = dword.get32(&wanted) | bits;
            dword.set(&mut wanted, with);
            let mut caps = Caps::new(&profile);
            let refused = caps.set_general(&wanted, Strictness::Strict).map_err(|e| e.field);
            assert_eq!(refused, Err(format!("cmd_hca_cap+{offset:#x}")));
            let ignored = caps.set_general(&wanted, Strictness::Lenient).expect("taken");
            assert!(ignored[0].text.contains("reserved bits"), "{ignored:?}");
            assert_eq!(caps.query(CapType::GENERAL, true), Some(&current[..]));
        }
    }

    #[test]
    fn a_capability_can_be_hidden() {
        let mut profile = Profile::node(0);
        profile.misbehaviour.hidden_capabilities.push((0x44, 1));
        let caps = Caps::new(&profile);
        assert_eq!(caps.current(cmd_hca_cap::rc), 0);
        assert_eq!(caps.current(cmd_hca_cap::ud), 1);
    }
}
