//! The port's counters, and the performance management agent that tells them (IBTA volume 1 chapter 16).

use ib_mgmt::mad::{self, Mad, method, status};
use ib_mgmt::pma::{self, attr};

use crate::infiniband::packet::{LID_MULTICAST, LID_PERMISSIVE};

/// Counters of a port (PortCounters and PortCountersExtended, IBTA volume 1 section 16.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortCounters {
    /// Octets sent, divided by 4.
    pub xmit_data: u64,
    /// Octets received, divided by 4.
    pub rcv_data: u64,
    /// Packets sent.
    pub xmit_packets: u64,
    /// Packets received.
    pub rcv_packets: u64,
    /// Unicast packets sent.
    pub unicast_xmit_packets: u64,
    /// Unicast packets received.
    pub unicast_rcv_packets: u64,
    /// Multicast packets sent.
    pub multicast_xmit_packets: u64,
    /// Multicast packets received.
    pub multicast_rcv_packets: u64,
    /// Packets with an error.
    pub rcv_errors: u64,
    /// Packets that could not be sent.
    pub xmit_discards: u64,
    /// Management packets dropped for lack of a receive buffer.
    pub vl15_dropped: u64,
    /// The link went down.
    pub link_downed: u64,
    /// Packets that a switch could not forward.
    pub rcv_relay_errors: u64,
    /// Packets that a switch did not take in: their LID or P_Key was not the port's.
    pub rcv_constraint_errors: u64,
    /// Ticks during which a packet waited for credit.
    pub xmit_wait: u64,
}

/// Whether a packet goes to a multicast group, by its DLID.
fn is_multicast(packet: &[u8]) -> bool {
    let dlid = packet.get(2..4).and_then(<[u8]>::first_chunk).map_or(0, |lid| u16::from_be_bytes(*lid));
    (LID_MULTICAST..LID_PERMISSIVE).contains(&dlid)
}

impl PortCounters {
    /// Counts a packet that came in.
    pub fn received(&mut self, packet: &[u8]) {
        self.rcv_packets += 1;
        self.rcv_data += packet.len() as u64 / 4;
        if is_multicast(packet) {
            self.multicast_rcv_packets += 1;
        } else {
            self.unicast_rcv_packets += 1;
        }
    }

    /// Counts a packet that went out.
    pub fn sent(&mut self, packet: &[u8]) {
        self.xmit_packets += 1;
        self.xmit_data += packet.len() as u64 / 4;
        if is_multicast(packet) {
            self.multicast_xmit_packets += 1;
        } else {
            self.unicast_xmit_packets += 1;
        }
    }

    /// Counts packets to one port that came in, of `bytes` in all.
    pub fn add_received(&mut self, packets: u64, bytes: u64) {
        self.rcv_packets += packets;
        self.unicast_rcv_packets += packets;
        self.rcv_data += bytes / 4;
    }

    /// Counts packets to one port that went out, of `bytes` in all.
    pub fn add_sent(&mut self, packets: u64, bytes: u64) {
        self.xmit_packets += packets;
        self.unicast_xmit_packets += packets;
        self.xmit_data += bytes / 4;
    }

    /// Adds another port's counters.
    pub fn add(&mut self, other: &Self) {
        let mut theirs = *other;
        for (to, from) in self.all().into_iter().zip(theirs.all()) {
            *to += *from;
        }
    }

    fn all(&mut self) -> [&mut u64; 15] {
        [
            &mut self.xmit_data,
            &mut self.rcv_data,
            &mut self.xmit_packets,
            &mut self.rcv_packets,
            &mut self.unicast_xmit_packets,
            &mut self.unicast_rcv_packets,
            &mut self.multicast_xmit_packets,
            &mut self.multicast_rcv_packets,
            &mut self.rcv_errors,
            &mut self.xmit_discards,
            &mut self.vl15_dropped,
            &mut self.link_downed,
            &mut self.rcv_relay_errors,
            &mut self.rcv_constraint_errors,
            &mut self.xmit_wait,
        ]
    }

    /// The attribute PortCounters. These counters stop at their largest value.
    fn port_counters(&self) -> pma::PortCounters {
        let byte = |value: u64| u8::try_from(value).unwrap_or(u8::MAX);
        let short = |value: u64| u16::try_from(value).unwrap_or(u16::MAX);
        let word = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
        let mut data = pma::PortCounters::zeroed();
        data.set_link_downed(byte(self.link_downed))
            .set_rcv_errors(short(self.rcv_errors))
            .set_rcv_switch_relay_errors(short(self.rcv_relay_errors))
            .set_xmit_discards(short(self.xmit_discards))
            .set_rcv_constraint_errors(byte(self.rcv_constraint_errors))
            .set_vl15_dropped(short(self.vl15_dropped))
            .set_xmit_data(word(self.xmit_data))
            .set_rcv_data(word(self.rcv_data))
            .set_xmit_packets(word(self.xmit_packets))
            .set_rcv_packets(word(self.rcv_packets))
            .set_xmit_wait(word(self.xmit_wait));
        data
    }

    /// The attribute PortCountersExtended.
    fn port_counters_extended(&self) -> pma::PortCountersExtended {
        let mut data = pma::PortCountersExtended::zeroed();
        data.set_xmit_data(self.xmit_data)
            .set_rcv_data(self.rcv_data)
            .set_xmit_packets(self.xmit_packets)
            .set_rcv_packets(self.rcv_packets)
            .set_unicast_xmit_packets(self.unicast_xmit_packets)
            .set_unicast_rcv_packets(self.unicast_rcv_packets)
            .set_multicast_xmit_packets(self.multicast_xmit_packets)
            .set_multicast_rcv_packets(self.multicast_rcv_packets)
            .set_link_downed(self.link_downed)
            .set_rcv_errors(self.rcv_errors)
            .set_rcv_switch_relay_errors(self.rcv_relay_errors)
            .set_xmit_discards(self.xmit_discards)
            .set_rcv_constraint_errors(self.rcv_constraint_errors)
            .set_vl15_dropped(self.vl15_dropped)
            .set_xmit_wait(self.xmit_wait);
        data
    }

    /// `CounterSelect` and `CounterSelect2` of PortCounters.
    fn clear(&mut self, select: u16, select2: u8) {
        clear_selected(
            u32::from(select) | u32::from(select2) << 16,
            [
                (2, &mut self.link_downed),
                (3, &mut self.rcv_errors),
                (5, &mut self.rcv_relay_errors),
                (6, &mut self.xmit_discards),
                (8, &mut self.rcv_constraint_errors),
                (11, &mut self.vl15_dropped),
                (12, &mut self.xmit_data),
                (13, &mut self.rcv_data),
                (14, &mut self.xmit_packets),
                (15, &mut self.rcv_packets),
                (16, &mut self.xmit_wait),
            ],
        );
    }

    /// `CounterSelect` and `CounterSelect2` of PortCountersExtended.
    fn clear_extended(&mut self, select: u16, select2: u32) {
        clear_selected(
            u32::from(select),
            [
                (0, &mut self.xmit_data),
                (1, &mut self.rcv_data),
                (2, &mut self.xmit_packets),
                (3, &mut self.rcv_packets),
                (4, &mut self.unicast_xmit_packets),
                (5, &mut self.unicast_rcv_packets),
                (6, &mut self.multicast_xmit_packets),
                (7, &mut self.multicast_rcv_packets),
            ],
        );
        clear_selected(
            select2,
            [
                (2, &mut self.link_downed),
                (3, &mut self.rcv_errors),
                (5, &mut self.rcv_relay_errors),
                (6, &mut self.xmit_discards),
                (8, &mut self.rcv_constraint_errors),
                (11, &mut self.vl15_dropped),
                (12, &mut self.xmit_wait),
            ],
        );
    }
}

fn clear_selected<const N: usize>(select: u32, counters: [(u32, &mut u64); N]) {
    for (bit, counter) in counters {
        if select >> bit & 1 != 0 {
            *counter = 0;
        }
    }
}

/// Answers Get and Set of performance management. `ports` are the node's, by number; all of them are meant by number 255
/// where there is more than one port, or `all_ports` is set.
pub fn answer(request: &Mad, ports: &mut [(u8, &mut PortCounters)], all_ports: bool) -> Mad {
    if request.base_version() != 1 || request.class_version() != 1 {
        return request.to_response(status::BAD_VERSION);
    }
    let set = match request.method() {
        method::GET => false,
        method::SET => true,
        _ => return request.to_response(status::METHOD_NOT_SUPPORTED),
    };
    let mut reply = request.to_response(status::OK);
    if request.attr_id() == mad::attr::CLASS_PORT_INFO {
        if set {
            return request.to_response(status::ATTR_NOT_SUPPORTED);
        }
        pma::set_data(&mut reply, pma::class_port_info(all_ports).as_bytes());
        return reply;
    }
    if !matches!(request.attr_id(), attr::PORT_COUNTERS | attr::PORT_COUNTERS_EXTENDED) {
        return request.to_response(status::ATTR_NOT_SUPPORTED);
    }
    let data = pma::data(request);
    let (wanted, data) = (data.get(1).copied().unwrap_or(0), data.as_slice());
    let everything = wanted == pma::ALL_PORTS && all_ports;
    let mut sum = PortCounters::default();
    let mut found = false;
    for (_, counters) in ports.iter_mut().filter(|(number, _)| everything || *number == wanted) {
        found = true;
        if set {
            match request.attr_id() {
                attr::PORT_COUNTERS => {
                    let given = pma::PortCounters::from_slice(data).unwrap_or_default();
                    counters.clear(given.counter_select(), given.counter_select2() & 1);
                }
                _ => {
                    let given = pma::PortCountersExtended::from_slice(data).unwrap_or_default();
                    counters.clear_extended(given.counter_select(), given.counter_select2());
                }
            }
        }
        sum.add(counters);
    }
    if !found {
        return request.to_response(status::INVALID_FIELD);
    }
    if request.attr_id() == attr::PORT_COUNTERS {
        pma::set_data(&mut reply, sum.port_counters().set_port_select(wanted).as_bytes());
    } else {
        pma::set_data(&mut reply, sum.port_counters_extended().set_port_select(wanted).as_bytes());
    }
    reply
}

#[cfg(test)]
mod tests {
    use super::*;
    use ib_mgmt::mad::class;

    fn ask(method: u8, attribute: u16, data: &[u8], ports: &mut [(u8, &mut PortCounters)]) -> Mad {
        let mut request = Mad::new(class::PERF_MGMT, 1, method, attribute, 3);
        pma::set_data(&mut request, data);
        let all = ports.len() > 1;
        let reply = answer(&request, ports, all);
        assert_eq!((reply.tid(), reply.method(), reply.base_version()), (3, method::GET_RESP, 1));
        reply
    }

    #[test]
    fn counters_are_told_stopped_at_their_limit_and_cleared_as_selected() {
        let mut counters = PortCounters::default();
        let mut packet = [0; 300];
        counters.sent(&packet);
        counters.received(&packet);
        packet[2] = 0xc0;
        counters.received(&packet);
        counters.xmit_discards = 0x1_0005;
        counters.xmit_wait = 9;
        let told = |mad: &Mad| pma::PortCounters::from_slice(pma::data(mad)).unwrap();
        let reply = ask(method::GET, attr::PORT_COUNTERS, &[0, 1], &mut [(1, &mut counters)]);
        assert_eq!(reply.status(), 0);
        let data = told(&reply);
        assert_eq!((data.xmit_packets(), data.rcv_packets(), data.rcv_data()), (1, 2, 150));
        assert_eq!((data.xmit_discards(), data.xmit_wait(), data.port_select()), (0xffff, 9, 1));
        let reply = ask(method::GET, attr::PORT_COUNTERS_EXTENDED, &[0, 1], &mut [(1, &mut counters)]);
        let data = pma::PortCountersExtended::from_slice(pma::data(&reply)).unwrap();
        assert_eq!(
            (data.unicast_rcv_packets(), data.multicast_rcv_packets(), data.xmit_discards()),
            (1, 1, 0x1_0005)
        );

        // PortRcvData and PortXmitWait only.
        let mut select = [0; 44];
        select[..4].copy_from_slice(&[0, 1, 0x20, 0]);
        select[18] = 1;
        ask(method::SET, attr::PORT_COUNTERS, &select, &mut [(1, &mut counters)]);
        assert_eq!((counters.rcv_data, counters.xmit_wait, counters.rcv_packets), (0, 0, 2));
        let mut select = [0; 184];
        select[..8].copy_from_slice(&[0, 1, 0, 0x80, 0, 0, 0, 0x40]);
        ask(method::SET, attr::PORT_COUNTERS_EXTENDED, &select, &mut [(1, &mut counters)]);
        assert_eq!(
            (counters.multicast_rcv_packets, counters.unicast_rcv_packets, counters.xmit_discards),
            (0, 1, 0)
        );
    }

    #[test]
    fn all_ports_together_and_ports_that_do_not_exist() {
        let mut a = PortCounters { xmit_packets: 3, ..PortCounters::default() };
        let mut b = PortCounters { xmit_packets: 4, ..PortCounters::default() };
        let mut get = |attribute, port| {
            let reply = ask(method::GET, attribute, &[0, port], &mut [(1, &mut a), (2, &mut b)]);
            (reply.status(), pma::PortCounters::from_slice(pma::data(&reply)).unwrap().xmit_packets())
        };
        assert_eq!(get(attr::PORT_COUNTERS, 1), (0, 3));
        assert_eq!(get(attr::PORT_COUNTERS, 255), (0, 7));
        assert_eq!(get(attr::PORT_COUNTERS, 3).0, status::INVALID_FIELD);
        assert_eq!(get(attr::PORT_SAMPLES_CONTROL, 1).0, status::ATTR_NOT_SUPPORTED);
        let mut old = Mad::new(class::PERF_MGMT, 2, method::GET, attr::PORT_COUNTERS, 3);
        assert_eq!(answer(&old, &mut [], false).status(), status::BAD_VERSION);
        old.set_class_version(1).set_method(method::SEND);
        assert_eq!(answer(&old, &mut [], false).status(), status::METHOD_NOT_SUPPORTED);
    }
}
