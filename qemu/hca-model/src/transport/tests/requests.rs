//! Work requests: what a guest's driver writes into the rings of its QPs.

use mlx5_prm::datapath::*;

use super::bed::{Bed, Handle};

/// A data segment: address, length, lkey.
pub(super) type Seg = (u64, u32, u32);

/// A send work request.
#[derive(Clone, Debug)]
pub(super) struct Request {
    pub(super) opcode: SendOpcode,
    pub(super) flags: FmCeSe,
    pub(super) immediate: u32,
    pub(super) remote: (u64, u32),
    pub(super) atomic: (u64, u64),
    pub(super) data: Vec<Seg>,
    pub(super) inline: Option<Vec<u8>>,
    pub(super) xrc_srqn: Option<u32>,
}

impl Request {
    pub(super) fn new(opcode: SendOpcode, data: &[Seg]) -> Self {
        Self {
            opcode,
            flags: FmCeSe::CQ_UPDATE,
            immediate: 0,
            remote: (0, 0),
            atomic: (0, 0),
            data: data.to_vec(),
            inline: None,
            xrc_srqn: None,
        }
    }

    pub(super) fn to(mut self, address: u64, rkey: u32) -> Self {
        self.remote = (address, rkey);
        self
    }

    pub(super) fn flags(mut self, flags: FmCeSe) -> Self {
        self.flags = flags;
        self
    }

    pub(super) fn immediate(mut self, immediate: u32) -> Self {
        self.immediate = immediate;
        self
    }
}

impl Bed {
    /// Writes a WQE, without telling the device.
    pub(super) fn post(&mut self, qp: &mut Handle, request: &Request) -> u16 {
        self.post_with_av(qp, request, None)
    }

    pub(super) fn post_with_av(
        &mut self,
        qp: &mut Handle,
        request: &Request,
        address: Option<[u8; 48]>,
    ) -> u16 {
        let index = qp.posted;
        let mut wqe = vec![0; 16];
        wqe_ctrl_seg::imm.set(&mut wqe, request.immediate);
        wqe[CTRL_FM_CE_SE] = request.flags.bits();
        // Without the extension it has 16 bytes.
        let extended = |av: &[u8; 48]| av[8] & 0x80 != 0;
        let length = address.as_ref().map_or(0, |av| if extended(av) { 48 } else { 16 });
        wqe.extend(address.iter().flatten().take(length));
        if let Some(srqn) = request.xrc_srqn {
            let mut segment = [0; 16];
            wqe_xrc_seg::xrc_srqn.set(&mut segment, srqn);
            wqe.extend(segment);
        }
        let rdma = !matches!(
            request.opcode,
            SendOpcode::NOP | SendOpcode::SEND | SendOpcode::SEND_IMM | SendOpcode::SEND_INVAL
        );
        if rdma {
            let mut segment = [0; 16];
            wqe_raddr_seg::raddr.set(&mut segment, request.remote.0);
            wqe_raddr_seg::rkey.set(&mut segment, request.remote.1);
            wqe.extend(segment);
        }
        if matches!(request.opcode, SendOpcode::ATOMIC_CS | SendOpcode::ATOMIC_FA) {
            let mut segment = [0; 16];
            wqe_atomic_seg::swap_add.set(&mut segment, request.atomic.0);
            wqe_atomic_seg::compare.set(&mut segment, request.atomic.1);
            wqe.extend(segment);
        }
        for segment in &request.data {
            wqe.extend(data_segment(segment));
        }
        if let Some(data) = &request.inline {
            wqe.extend((INLINE_SEG | data.len() as u32).to_be_bytes());
            wqe.extend(data);
            wqe.resize(wqe.len().next_multiple_of(16), 0);
        }
        let ds = (wqe.len() / 16) as u32;
        wqe[..4].copy_from_slice(&ctrl_opmod_idx_opcode(0, index, request.opcode).to_be_bytes());
        wqe[4..8].copy_from_slice(&ctrl_qpn_ds(qp.qpn, ds).to_be_bytes());
        self.post_raw(qp, &wqe)
    }

    /// Puts bytes into the send ring as a WQE.
    pub(super) fn post_raw(&mut self, qp: &mut Handle, wqe: &[u8]) -> u16 {
        let index = qp.posted;
        for (i, block) in wqe.chunks(64).enumerate() {
            let slot = index.wrapping_add(i as u16) & ((1 << qp.log_sq) - 1);
            self.guests[qp.node].write(qp.sq + u64::from(slot) * 64, block);
        }
        qp.posted = index.wrapping_add(wqe.len().div_ceil(64) as u16);
        index
    }

    /// Rings the send doorbell.
    pub(super) fn ring(&mut self, qp: &Handle) {
        self.guests[qp.node].write(qp.dbr + 4, &u32::from(qp.posted).to_be_bytes());
        self.idle = false;
        let device = &mut self.world.hca_mut(qp.node).unwrap().device;
        device.transport.ring(device.objects.qps.get_mut(qp.qpn).unwrap());
    }

    /// Posts and rings.
    pub(super) fn send(&mut self, qp: &mut Handle, request: &Request) -> u16 {
        let index = self.post(qp, request);
        self.ring(qp);
        index
    }

    /// Posts a receive.
    pub(super) fn receive(&mut self, qp: &mut Handle, data: &[Seg]) -> u16 {
        let index = qp.receives;
        let mut wqe: Vec<u8> = data.iter().flat_map(data_segment).collect();
        if wqe.len() < 64 {
            wqe.extend([0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        }
        let slot = u64::from(index) & ((1 << qp.log_rq) - 1);
        self.guests[qp.node].write(qp.rq + slot * 64, &wqe[..wqe.len().min(64)]);
        qp.receives = index.wrapping_add(1);
        self.guests[qp.node].write(qp.dbr, &u32::from(qp.receives).to_be_bytes());
        index
    }
}

pub(super) fn data_segment(segment: &Seg) -> [u8; 16] {
    let mut bytes = [0; 16];
    wqe_data_seg::addr.set(&mut bytes, segment.0);
    wqe_data_seg::byte_count.set(&mut bytes, segment.1);
    wqe_data_seg::lkey.set(&mut bytes, segment.2);
    bytes
}
