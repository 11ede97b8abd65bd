//! QP1, the general services interface: management datagrams in and out.
//!
//! The QP1 object receives. Where the HCA can put another source QP number into datagrams (`set_deth_sqpn`), an ordinary UD QP
//! sends under number 1, as Linux does; otherwise the QP1 object sends too.

use driver_mlx::{
    AddressVector, Bar, CompletionKind, CqNumber, Error, Hca, NetworkHeader, Path, Pd, Platform, PortType,
    QKey, Qp, QpConfig, QpNumber, SendFlags, SendOp, Service,
};
use ib_mgmt::mad::{GrhAddress, MAD_LEN, Mad, MadAddress};
use ib_types::{Duration, Gid, Instant, ServiceLevel, Wake};

use crate::info::PortInfo;
use crate::queue::{Buffers, run_qp, start_qp};

/// Bytes before a received datagram: room for its global routing header.
const GRH_LEN: usize = 40;
/// Bytes of the IPv4 header that is there instead, at the end.
const IPV4_LEN: usize = 20;
/// Receives kept posted.
const RECEIVES: usize = 64;
/// Distance of the receive buffers, bytes.
const RECEIVE_STRIDE: usize = 512;
/// Datagrams that can be under way at once.
const SENDS: usize = 32;
/// Least distance of two restarts.
const RETRY: Duration = Duration::from_millis(100);
/// Cookie bit that tells sends from receives.
const SEND: u64 = 1 << 32;

/// What went by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GsiCounters {
    /// Datagrams received.
    pub received: u64,
    /// Datagrams handed to the HCA.
    pub sent: u64,
    /// Received datagrams of a wrong size, or with an error completion.
    pub bad: u64,
    /// Datagrams not sent because too many were under way, or that the HCA refused or flushed.
    /// Their sender repeats them.
    pub send_failed: u64,
    /// Times that QP1 failed and was started again.
    pub restarts: u64,
}

/// QP1 and what it needs.
#[derive(Debug)]
pub(crate) struct Gsi<B: Bar> {
    queue: Buffers<B>,
    receiver: Qp<B>,
    /// The UD QP that sends as QP 1; None if the QP1 object does it.
    sender: Option<Qp<B>>,
    /// A set bit is a send buffer under way.
    sending: u32,
    /// Index of the P_Key that datagrams are sent with; those with any P_Key of the table are
    /// received.
    pkey_index: u16,
    port_type: PortType,
    /// A queue pair has failed: [`Gsi::service`] starts both again.
    broken: bool,
    /// Not before this time.
    retry_at: Instant,
    pub(crate) counters: GsiCounters,
}

impl<B: Bar> Gsi<B> {
    /// Makes and starts QP1 of port 1. What was begun is undone on failure.
    // Code size: inlined, its locals share a frame so large that each access takes four more bytes.
    #[inline(never)]
    pub(crate) fn open<P: Platform<Bar = B>>(hca: &mut Hca<'_, P>, info: &PortInfo) -> Result<Self, Error> {
        let &PortInfo { pkey_index, port_type, .. } = info;
        let len = RECEIVES * RECEIVE_STRIDE + SENDS * MAD_LEN;
        let queue = Buffers::open(hca, len, RECEIVES + SENDS)?;
        // On Ethernet the QP1 object sends, as in Linux (drivers/infiniband/hw/mlx5/gsi.c).
        let apart = hca.caps().set_deth_sqpn && port_type == PortType::InfiniBand;
        let (receiver, sender) = match Self::open_pair(hca, (queue.pd, queue.cq_number()), apart, pkey_index)
        {
            Ok(pair) => pair,
            Err(error) => {
                // The first error is the one to tell.
                let _ = queue.close(hca);
                return Err(error);
            }
        };
        let counters = GsiCounters::default();
        let (broken, retry_at) = (false, Instant::ORIGIN);
        let mut gsi =
            Self { queue, receiver, sender, sending: 0, pkey_index, port_type, broken, retry_at, counters };
        gsi.post_receives();
        Ok(gsi)
    }

    /// The device gave a queue pair up; true if it was one of QP1's.
    pub(crate) fn qp_failed(&mut self, qpn: QpNumber) -> bool {
        let ours = self.receiver.number() == qpn || self.sender.as_ref().is_some_and(|qp| qp.number() == qpn);
        self.broken |= ours;
        ours
    }

    /// Sends with another P_Key from the next [`Gsi::service`] on.
    pub(crate) fn set_port(&mut self, info: &PortInfo) {
        self.broken |= info.pkey_index != self.pkey_index;
        self.pkey_index = info.pkey_index;
    }

    /// Starts the queue pairs again if one has failed. Messages in flight are lost:
    /// management protocols repeat them.
    pub(crate) fn service<P: Platform<Bar = B>>(&mut self, hca: &mut Hca<'_, P>, now: Instant) {
        if !self.broken || now < self.retry_at {
            return;
        }
        // Do not restart in a loop if it fails again at once.
        self.retry_at = now + RETRY;
        if self.restart(hca).is_ok() {
            self.broken = false;
            self.counters.restarts += 1;
        }
    }

    /// When [`Gsi::service`] has something to do.
    pub(crate) fn service_at(&self) -> Wake {
        if self.broken { Wake::At(self.retry_at) } else { Wake::Idle }
    }

    fn restart<P: Platform<Bar = B>>(&mut self, hca: &mut Hca<'_, P>) -> Result<(), Error> {
        for qp in [Some(&mut self.receiver), self.sender.as_mut()].into_iter().flatten() {
            hca.modify_to_reset(qp)?;
            self.queue.cq.sweep(qp.number());
            run_qp(hca, qp, self.pkey_index)?;
        }
        self.counters.send_failed += u64::from(self.sending.count_ones());
        self.sending = 0;
        self.post_receives();
        Ok(())
    }

    fn post_receives(&mut self) {
        for index in 0..RECEIVES {
            self.post_receive(index);
        }
    }

    fn open_pair<P: Platform<Bar = B>>(
        hca: &mut Hca<'_, P>,
        (pd, cq): (Pd, CqNumber),
        apart: bool,
        pkey_index: u16,
    ) -> Result<(Qp<B>, Option<Qp<B>>), Error> {
        let config = QpConfig {
            service: Service::Gsi,
            max_send_wr: if apart { 0 } else { SENDS as u32 },
            max_recv_wr: RECEIVES as u32,
            max_send_sge: 1,
            max_recv_sge: 1,
            ..QpConfig::rc(pd, cq)
        };
        let receiver = start_qp(hca, &config, pkey_index)?;
        if !apart {
            return Ok((receiver, None));
        }
        let config = QpConfig {
            service: Service::Ud { q_key: QKey::GSI },
            max_send_wr: SENDS as u32,
            max_recv_wr: 0,
            deth_sqpn: Some(QpNumber::GSI),
            ..config
        };
        match start_qp(hca, &config, pkey_index) {
            Ok(sender) => Ok((receiver, Some(sender))),
            Err(error) => {
                let _ = hca.destroy_qp(receiver);
                Err(error)
            }
        }
    }

    /// Destroys everything, the first error is told, the rest is done all the same.
    pub(crate) fn close<P: Platform<Bar = B>>(self, hca: &mut Hca<'_, P>) -> Result<(), Error> {
        let sender = self.sender.map_or(Ok(()), |qp| hca.destroy_qp(qp));
        let receiver = hca.destroy_qp(self.receiver);
        let queue = self.queue.close(hca);
        sender.and(receiver).and(queue)
    }

    fn receive_offset(index: usize) -> usize {
        index % RECEIVES * RECEIVE_STRIDE
    }

    fn post_receive(&mut self, index: usize) {
        let sge = self.queue.sge(Self::receive_offset(index), GRH_LEN + MAD_LEN);
        if self.receiver.post_recv(&[sge], index as u64).is_err() {
            self.counters.bad += 1;
        }
    }

    /// Sends a datagram to QP1 (or `qpn`) of another port. False without a path, or if it could not be handed over;
    /// management protocols repeat, so nothing more is done about it.
    pub(crate) fn send(&mut self, mad: &Mad, qpn: QpNumber, path: Option<Path>) -> bool {
        let slot = self.sending.trailing_ones() as usize;
        if slot >= SENDS {
            self.counters.send_failed += 1;
            return false;
        }
        let offset = RECEIVES * RECEIVE_STRIDE + slot * MAD_LEN;
        let Some(path) = path else {
            self.counters.send_failed += 1;
            return false;
        };
        let vector = AddressVector::new(&path, qpn, QKey::GSI, self.queue.rate_supported);
        let sge = self.queue.sge(offset, MAD_LEN);
        let written = self.queue.memory.write(offset, mad.as_bytes()).is_ok();
        let qp = self.sender.as_mut().unwrap_or(&mut self.receiver);
        let wr_id = SEND | slot as u64;
        let post = || qp.post_ud(&vector, SendOp::Send, &[sge], wr_id, SendFlags::SIGNALED).ok();
        let Some(doorbell) = written.then(post).flatten() else {
            self.counters.send_failed += 1;
            return false;
        };
        qp.ring(doorbell);
        self.sending |= 1 << slot;
        self.counters.sent += 1;
        true
    }

    /// The next received datagram and where it came from.
    pub(crate) fn receive(&mut self) -> Option<(Mad, MadAddress)> {
        // As many completions as the queue can hold, so that a device that repeats itself cannot keep us here.
        for _ in 0..RECEIVES + SENDS {
            let Ok(completion) = self.queue.cq.poll(|cqe| cqe.copy()).transpose()? else {
                self.counters.bad += 1;
                continue;
            };
            let completion = completion.cqe();
            if completion.is_send() {
                let retired = match &mut self.sender {
                    Some(sender) => sender.retire(&completion),
                    None => self.receiver.retire(&completion),
                };
                match retired.map(|done| done.wr_id().id) {
                    Some(wr_id) if wr_id & SEND != 0 => self.sending &= !(1 << (wr_id & 31)),
                    _ => self.counters.bad += 1,
                }
                if completion.error().is_some() {
                    self.counters.send_failed += 1;
                    self.broken = true;
                }
                continue;
            }
            let Some(done) = self.receiver.retire(&completion) else {
                self.counters.bad += 1;
                continue;
            };
            if completion.error().is_some() {
                // Posted again now it would only be flushed again.
                self.counters.bad += 1;
                self.broken = true;
                continue;
            }
            let index = done.wr_id().id as usize % RECEIVES;
            let good = completion.kind() == CompletionKind::Receive
                && completion.byte_len() as usize == GRH_LEN + MAD_LEN;
            let source = completion.datagram();
            let mut grh = [0; GRH_LEN];
            let mut mad = Mad::zeroed();
            let offset = Self::receive_offset(index);
            let read = self.queue.memory.read(offset, &mut grh).is_ok()
                && self.queue.memory.read(offset + GRH_LEN, mad.as_bytes_mut()).is_ok();
            self.post_receive(index);
            if !good || !read {
                self.counters.bad += 1;
                continue;
            }
            self.counters.received += 1;
            let (sl, grh) = match self.port_type {
                PortType::InfiniBand => (source.sl, source.grh.then(|| parse_grh(&grh))),
                PortType::Ethernet => {
                    let priority = source.vlan.map_or(0, |tag| tag >> 13) as u8;
                    (priority, source.network_header().map(|kind| parse_header(kind, &grh)))
                }
            };
            let from = MadAddress {
                lid: source.slid,
                qpn: source.src_qpn,
                sl: ServiceLevel::new(sl),
                path_bits: source.path_bits,
                pkey: completion.pkey(),
                grh,
            };
            return Some((mad, from));
        }
        None
    }

    /// Completion queue and memory.
    pub(crate) fn queue(&mut self) -> &mut Buffers<B> {
        &mut self.queue
    }

    /// Whether something has arrived that was not taken yet.
    pub(crate) fn has_work(&self) -> bool {
        self.queue.has_work()
    }
}

/// Both GIDs and the route fields of a received header (IBTA volume 1, 8.3); "local" is the receiver.
fn parse_grh(grh: &[u8; GRH_LEN]) -> GrhAddress {
    let part = |at: usize| {
        let mut gid = [0; 16];
        gid.iter_mut().zip(grh.iter().skip(at)).for_each(|(to, from)| *to = *from);
        Gid(gid)
    };
    let word = u32::from_be_bytes([grh[0], grh[1], grh[2], grh[3]]);
    GrhAddress {
        local_gid: part(24),
        remote_gid: part(8),
        // A reply must not be stopped at the first router because the request came far.
        hop_limit: 64,
        traffic_class: (word >> 20) as u8,
        flow_label: word & 0xf_ffff,
    }
}

/// The same of a received network header of RoCE. ECN is the packet's, not the connection's.
fn parse_header(kind: NetworkHeader, bytes: &[u8; GRH_LEN]) -> GrhAddress {
    let header = match kind {
        NetworkHeader::Grh | NetworkHeader::Ipv6 => parse_grh(bytes),
        NetworkHeader::Ipv4 => {
            let [.., a, b, c, d, e, f, g, h] = *bytes;
            GrhAddress {
                local_gid: Gid::from_ipv4([e, f, g, h]),
                remote_gid: Gid::from_ipv4([a, b, c, d]),
                hop_limit: 64,
                traffic_class: bytes[GRH_LEN - IPV4_LEN + 1],
                flow_label: 0,
            }
        }
    };
    GrhAddress { traffic_class: header.traffic_class & !3, ..header }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ipv4_header_of_a_received_datagram() {
        let mut bytes = [0u8; GRH_LEN];
        bytes[20..]
            .copy_from_slice(&[0x45, 0x6a, 1, 0, 0, 0, 0x40, 0, 3, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        let parsed = parse_header(NetworkHeader::Ipv4, &bytes);
        assert_eq!(parsed.remote_gid, Gid::from_ipv4([10, 0, 0, 1]));
        assert_eq!(parsed.local_gid, Gid::from_ipv4([10, 0, 0, 2]));
        assert_eq!((parsed.traffic_class, parsed.flow_label, parsed.hop_limit), (0x68, 0, 64));
        bytes[..4].copy_from_slice(&0x66aa_bcde_u32.to_be_bytes());
        let parsed = parse_header(NetworkHeader::Ipv6, &bytes);
        assert_eq!((parsed.traffic_class, parsed.flow_label), (0x68, 0xabcde));
    }

    #[test]
    fn grh_of_a_received_datagram() {
        let mut grh = [0u8; GRH_LEN];
        grh[..4].copy_from_slice(&0x65aa_bcde_u32.to_be_bytes());
        grh[7] = 3;
        for (index, byte) in grh[8..].iter_mut().enumerate() {
            *byte = index as u8;
        }
        let parsed = parse_grh(&grh);
        assert_eq!(parsed.traffic_class, 0x5a);
        assert_eq!(parsed.flow_label, 0xabcde);
        assert_eq!(parsed.remote_gid.0[0], 0);
        assert_eq!(parsed.local_gid.0[15], 31);
        assert_eq!(parsed.hop_limit, 64);
    }
}
