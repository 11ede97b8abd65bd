//! Queue pairs: the context (PRM, software context formats), parsed.

use super::pages::PageList;
use super::remote_access::RemoteAccess;
use crate::transport::QpTransport;
use ib_types::MacAddress;
use mlx5_prm::contexts::{ads, qpc};
use mlx5_prm::value::{QpState, RqType, ServiceType};

/// An address path (`ads`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AddressPath {
    /// `fl`: packets return inside the device.
    pub(crate) force_loopback: bool,
    /// Index into the port's P_Key table.
    pub(crate) pkey_index: u16,
    /// Packets carry a GRH.
    pub(crate) grh: bool,
    /// Low 7 bits of the source LID.
    pub(crate) mlid: u8,
    /// Destination LID.
    pub(crate) rlid: u16,
    /// ACK time-out: 4.096 us times 2 to the power of this; 0 is infinite.
    pub(crate) ack_timeout: u8,
    /// Index of the source GID, with `grh`.
    pub(crate) src_addr_index: u8,
    /// Static rate code.
    pub(crate) stat_rate: u8,
    /// GRH hop limit.
    pub(crate) hop_limit: u8,
    /// GRH traffic class.
    pub(crate) tclass: u8,
    /// GRH flow label, 20 bits.
    pub(crate) flow_label: u32,
    /// Destination GID, with `grh`.
    pub(crate) rgid: [u8; 16],
    /// Service level.
    pub(crate) sl: u8,
    /// Port, from 1.
    pub(crate) port: u8,
    /// Of RoCE: MAC address of the next hop.
    pub(crate) rmac: MacAddress,
    /// Of RoCE v2: UDP source port.
    pub(crate) udp_sport: u16,
    /// Of RoCE: priority in a VLAN tag.
    pub(crate) eth_prio: u8,
    /// Of RoCE: code point of differentiated services. The traffic class has it, too.
    pub(crate) dscp: u8,
}

impl AddressPath {
    /// Parses an `ads`.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Self {
        let mut rgid = [0; 16];
        if let Some(from) = ads::rgid_rip.of(bytes).get(..16) {
            rgid.copy_from_slice(from);
        }
        Self {
            force_loopback: ads::fl.is_set(bytes),
            pkey_index: ads::pkey_index.get32(bytes) as u16,
            grh: ads::grh.is_set(bytes),
            mlid: ads::mlid.get32(bytes) as u8,
            rlid: ads::rlid.get32(bytes) as u16,
            ack_timeout: ads::ack_timeout.get32(bytes) as u8,
            src_addr_index: ads::src_addr_index.get32(bytes) as u8,
            stat_rate: ads::stat_rate.get32(bytes) as u8,
            hop_limit: ads::hop_limit.get32(bytes) as u8,
            tclass: ads::tclass.get32(bytes) as u8,
            flow_label: ads::flow_label.get32(bytes),
            rgid,
            sl: ads::sl.get32(bytes) as u8,
            port: ads::vhca_port_num.get32(bytes) as u8,
            rmac: rmac(bytes),
            udp_sport: ads::udp_sport.get32(bytes) as u16,
            eth_prio: ads::eth_prio.get32(bytes) as u8,
            dscp: ads::dscp.get32(bytes) as u8,
        }
    }

    /// Writes an `ads`.
    pub fn emit(&self, bytes: &mut [u8]) {
        ads::fl.set(bytes, self.force_loopback);
        ads::pkey_index.set(bytes, self.pkey_index);
        ads::grh.set(bytes, self.grh);
        ads::mlid.set(bytes, self.mlid);
        ads::rlid.set(bytes, self.rlid);
        ads::ack_timeout.set(bytes, self.ack_timeout);
        ads::src_addr_index.set(bytes, self.src_addr_index);
        ads::stat_rate.set(bytes, self.stat_rate);
        ads::hop_limit.set(bytes, self.hop_limit);
        ads::tclass.set(bytes, self.tclass);
        ads::flow_label.set(bytes, self.flow_label);
        if let Some(to) = ads::rgid_rip.of_mut(bytes).get_mut(..16) {
            to.copy_from_slice(&self.rgid);
        }
        ads::sl.set(bytes, self.sl);
        ads::vhca_port_num.set(bytes, self.port);
        let [a, b, rest @ ..] = self.rmac.0;
        ads::rmac_47_32.set(bytes, u16::from_be_bytes([a, b]));
        ads::rmac_31_0.set(bytes, u32::from_be_bytes(rest));
        ads::udp_sport.set(bytes, self.udp_sport);
        ads::eth_prio.set(bytes, self.eth_prio);
        ads::dscp.set(bytes, self.dscp);
    }
}

fn rmac(path: &[u8]) -> MacAddress {
    let [a, b] = (ads::rmac_47_32.get32(path) as u16).to_be_bytes();
    let [c, d, e, f] = ads::rmac_31_0.get32(path).to_be_bytes();
    MacAddress([a, b, c, d, e, f])
}

/// The send queue's place in the QP's buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendQueue {
    /// Byte offset in [`Qp::buffer`].
    pub(crate) offset: u64,
    /// log2 of its 64-byte basic blocks.
    pub(crate) log_size: u32,
}

/// The receive queue's place in the QP's buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceiveQueue {
    /// Byte offset in [`Qp::buffer`].
    pub(crate) offset: u64,
    /// log2 of its entries.
    pub(crate) log_size: u32,
    /// log2 of bytes of an entry.
    pub(crate) log_stride: u32,
}

/// A queue pair.
#[derive(Clone, Debug)]
pub struct Qp {
    /// Its number in commands and doorbells.
    pub(crate) qpn: u32,
    /// Service type.
    pub(crate) service: ServiceType,
    /// State.
    pub(crate) state: QpState,
    /// Protection domain.
    pub(crate) pd: u32,
    /// The UAR whose doorbells it obeys.
    pub(crate) uar_page: u32,
    /// CQ of send completions.
    pub(crate) cqn_snd: u32,
    /// CQ of receive completions.
    pub(crate) cqn_rcv: u32,
    /// Where receives come from.
    pub(crate) rq_type: RqType,
    /// SRQ, RMP or XRQ, with [`RqType::SRQ_RQ`].
    pub(crate) srqn: u32,
    /// XRC domain.
    pub(crate) xrcd: u32,
    /// Both rings.
    pub(crate) buffer: PageList,
    /// The send queue, if any.
    pub(crate) sq: Option<SendQueue>,
    /// The receive queue of its own, if any.
    pub(crate) rq: Option<ReceiveQueue>,
    /// Doorbell record: receive counter, send counter.
    pub(crate) dbr_addr: u64,
    /// Comes back in every completion (24 bits); 0xffffff asks for the older form, with the SRQ's number there or zero.
    pub(crate) user_index: u32,
    /// May use the reserved L_Key.
    pub(crate) reserved_lkey: bool,
    /// May send UMRs.
    pub(crate) fast_registration: bool,
    /// `cs_req`: requester scatters small data into the CQE (0x11 up to 32 bytes, 0x22 up to 64).
    pub(crate) cs_req: u8,
    /// `cs_res`: responder likewise (1, 2).
    pub(crate) cs_res: u8,
    /// `block_lb_mc`: own multicasts are not received.
    pub(crate) block_multicast_loopback: bool,
    /// Q counter set; 0 is none.
    pub(crate) counter_set_id: u8,
    /// Path MTU code.
    pub(crate) mtu: u8,
    /// log2 of the longest message.
    pub(crate) log_msg_max: u8,
    /// The peer's QP number.
    pub(crate) remote_qpn: u32,
    /// The path in use.
    pub(crate) primary_path: AddressPath,
    /// The alternate path.
    pub(crate) alternate_path: AddressPath,
    /// `pm_state`.
    pub(crate) pm_state: u8,
    /// log2 of packets between two requests for acknowledgement.
    pub(crate) log_ack_req_freq: u8,
    /// log2 of outstanding reads and atomics as requester.
    pub(crate) log_sra_max: u8,
    /// log2 of outstanding reads and atomics as responder.
    pub(crate) log_rra_max: u8,
    /// Retries after time-outs and sequence errors.
    pub(crate) retry_count: u8,
    /// Retries after RNR NAKs; 7 is forever.
    pub(crate) rnr_retry: u8,
    /// RNR timer code that this responder sends.
    pub(crate) min_rnr_nak: u8,
    /// First PSN of the requester, as given at RTR to RTS.
    pub(crate) next_send_psn: u32,
    /// First PSN expected by the responder, as given at INIT to RTR.
    pub(crate) next_rcv_psn: u32,
    /// Accesses that it allows its peer.
    pub(crate) remote_access: RemoteAccess,
    /// Q_Key (UD, QP1).
    pub(crate) q_key: u32,
    /// Source QP number put into the DETH instead of its own, if not 0.
    pub(crate) deth_sqpn: u32,
    /// The context as given, for fields of QUERY_QP that are not parsed.
    pub(crate) context: Vec<u8>,
    /// What the data path keeps for it.
    pub(crate) transport: QpTransport,
}

impl Qp {
    /// Host memory that it takes, with as many requests under way as there is room for.
    #[must_use]
    pub fn memory(&self) -> u64 {
        let fixed = (size_of::<Self>() + self.context.len()) as u64 + self.buffer.memory();
        fixed + self.transport.memory(self.sq.map_or(0, |sq| 1 << sq.log_size))
    }

    /// Whether completions of either queue go to `cqn`.
    #[must_use]
    pub fn uses_cq(&self, cqn: u32) -> bool {
        (self.sq.is_some() && self.cqn_snd == cqn)
            || (self.rq_type != RqType::ZERO_LEN_RQ && self.cqn_rcv == cqn)
    }

    /// Takes over what CREATE_QP fixes for life.
    pub fn parse_created(&mut self, context: &[u8]) {
        self.service = ServiceType(qpc::st.get32(context) as u8);
        self.pd = qpc::pd.get32(context);
        self.uar_page = qpc::uar_page.get32(context);
        self.cqn_snd = qpc::cqn_snd.get32(context);
        self.cqn_rcv = qpc::cqn_rcv.get32(context);
        self.rq_type = RqType(qpc::rq_type.get32(context) as u8);
        self.srqn = qpc::srqn_rmpn_xrqn.get32(context);
        self.xrcd = qpc::xrcd.get32(context);
        self.dbr_addr = qpc::dbr_addr.get(context);
        self.user_index = qpc::user_index.get32(context);
        self.reserved_lkey = qpc::rlky.is_set(context);
        self.fast_registration = qpc::fre.is_set(context);
        self.cs_req = qpc::cs_req.get32(context) as u8;
        self.cs_res = qpc::cs_res.get32(context) as u8;
        self.block_multicast_loopback = qpc::block_lb_mc.is_set(context);
        self.deth_sqpn = qpc::deth_sqpn.get32(context);
        self.log_ack_req_freq = qpc::log_ack_req_freq.get32(context) as u8;
        self.counter_set_id = qpc::counter_set_id.get32(context) as u8;
        self.pm_state = qpc::pm_state.get32(context) as u8;
    }
}
