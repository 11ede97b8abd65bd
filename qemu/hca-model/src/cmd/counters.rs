//! Q counters and vport counters (PRM, command reference).

use super::refusal::{Outcome, Refusal, Refused};
use crate::device::Device;
use crate::object::objects::Objects;
use mlx5_prm::Field;
use mlx5_prm::commands::*;
use mlx5_prm::value::CqStatus;

impl Device {
    pub(super) fn alloc_q_counter(&mut self, output: &mut [u8]) -> Outcome {
        let number = self.objects.q_counters.allocate().ok_or_else(|| Refusal::full("Q counter sets"))?;
        alloc_q_counter_out::counter_set_id.set(output, number);
        Ok(())
    }

    pub(super) fn dealloc_q_counter(&mut self, input: &[u8]) -> Outcome {
        let field = "dealloc_q_counter_in.counter_set_id";
        let number = dealloc_q_counter_in::counter_set_id.get32(input);
        if !self.objects.q_counters.sets.contains(number) {
            return Err(Refusal::missing(field, number));
        }
        if let Some(qpn) =
            self.objects.qps.user(|qp| qp.counter_set().is_some_and(|set| u32::from(set) == number))
        {
            return Err(Refusal::busy(field, format!("used by QP {qpn:#x}")));
        }
        if let Some(user) = self.objects.nic.user(|queue| queue.counter_set_id == number) {
            return Err(Refusal::busy(field, user));
        }
        self.objects.q_counters.sets.remove(number);
        Ok(())
    }

    pub(super) fn query_q_counter(&mut self, input: &[u8], output: &mut [u8]) -> Outcome {
        let number = query_q_counter_in::counter_set_id.get32(input);
        let Some(set) = self.objects.q_counters.sets.get_mut(number) else {
            return Err(Refusal::missing("query_q_counter_in.counter_set_id", number));
        };
        for (to, from) in output.iter_mut().zip(set.iter()).skip(16) {
            *to = *from;
        }
        if query_q_counter_in::clear.is_set(input) {
            set.fill(0);
        }
        Ok(())
    }

    pub(super) fn query_congestion(&mut self, input: &[u8], output: &mut [u8]) -> Outcome {
        use query_cong_statistics_out as out;
        let counters = &mut self.transport.congestion;
        for (high, value) in [
            (out::rp_cnp_ignored_high, counters.ignored),
            (out::rp_cnp_handled_high, counters.handled),
            (out::np_ecn_marked_roce_packets_high, counters.marked),
            (out::np_cnp_sent_high, counters.sent),
        ] {
            // The lower half follows.
            Field::quad(high.bit_offset / 8).set(output, value);
        }
        if query_cong_statistics_in::clear.is_set(input) {
            *counters = Default::default();
        }
        Ok(())
    }

    pub(super) fn query_vport_counter(&mut self, input: &[u8], output: &mut [u8]) -> Outcome {
        super::port::own_vport(
            query_vport_counter_in::other_vport.is_set(input),
            query_vport_counter_in::vport_number.get32(input),
            Some(query_vport_counter_in::port_num.get32(input)),
            "query_vport_counter_in",
        )?;
        let counters = self.port.counters;
        let mut put = |offset: u32, packets: u64, octets: u64| {
            Field::quad(offset).set(output, packets);
            Field::quad(offset + 8).set(output, octets);
        };
        put(0x10, counters.rcv_errors, 0);
        put(0x20, counters.xmit_discards, 0);
        put(0x30, counters.unicast_rcv_packets, counters.rcv_data.wrapping_mul(4));
        put(0x40, counters.unicast_xmit_packets, counters.xmit_data.wrapping_mul(4));
        put(0x50, counters.multicast_rcv_packets, 0);
        put(0x60, counters.multicast_xmit_packets, 0);
        if let Some(port) = &self.port.ethernet {
            for (offset, counted) in [(0x70, &port.received), (0x80, &port.sent)] {
                put(offset, counted.broadcast, 0);
                put(offset + 0x20, counted.unicast(), counted.octets);
                put(offset + 0x40, counted.multicast, 0);
            }
        }
        if query_vport_counter_in::clear.is_set(input) {
            self.port.counters = rdma_fabric::infiniband::PortCounters::default();
        }
        Ok(())
    }

    /// What the function did wrong, or was too slow for: queues in error that no command put there, refused commands, events and
    /// completions without room.
    pub(super) fn query_vnic_env(&mut self, input: &[u8], output: &mut [u8]) -> Outcome {
        use vnic_diagnostic_statistics as env;
        super::port::own_vport(
            query_vnic_env_in::other_vport.is_set(input),
            query_vnic_env_in::vport_number.get32(input),
            None,
            "query_vnic_env_in",
        )?;
        self.charge_scan();
        let Objects { queues, qps, .. } = &self.objects;
        let failed_qps = qps.iter().filter(|(_, qp)| qp.transport.has_failed()).count();
        let failed_cqs = queues.cqs.iter().filter(|(_, cq)| cq.status != CqStatus::OK).count();
        let Refused { for_quota, as_invalid } = self.refused;
        let counters = query_vnic_env_out::vport_env.of_mut(output);
        env::total_error_queues.set(counters, (failed_qps + failed_cqs) as u32);
        env::async_eq_overrun.set(counters, queues.overruns.async_eq);
        env::comp_eq_overrun.set(counters, queues.overruns.comp_eq);
        env::cq_overrun.set(counters, queues.overruns.cq);
        env::invalid_command.set(counters, as_invalid);
        env::quota_exceeded_command.set(counters, for_quota);
        Ok(())
    }
}
