//! Counters that the device keeps for queue pairs.

use crate::cmd::input;
use crate::error::Error;
use crate::hca::Hca;
use crate::platform::Platform;
use crate::types::CounterSet;
use mlx5_prm::commands::*;
use mlx5_prm::opcode::Opcode;

/// How often things happened to the QPs of a set of counters; each wraps at 2^32.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct QCounters {
    /// RDMA writes that came.
    pub rx_write_requests: u32,
    /// RDMA reads that came.
    pub rx_read_requests: u32,
    /// Atomics that came.
    pub rx_atomic_requests: u32,
    /// Messages that found no receive posted.
    pub out_of_buffer: u32,
    /// Packets that came out of sequence.
    pub out_of_sequence: u32,
    /// Requests that came twice.
    pub duplicate_request: u32,
    /// Times that a peer without receives used up the retries.
    pub rnr_nak_retry_err: u32,
    /// Sequence errors that a peer reported.
    pub packet_seq_err: u32,
    /// Sequence errors that an answer gave away.
    pub implied_nak_seq_err: u32,
    /// Times that no acknowledgement came in time.
    pub local_ack_timeout_err: u32,
    /// Requests that ended because the retries were used up.
    pub transport_retries_exceeded: u32,
    /// Requests that a peer refused for their key, range or rights.
    pub remote_access_errors: u32,
    /// Requests of peers that were refused for their key, range or rights.
    pub responder_access_errors: u32,
    /// Binds of memory windows that were refused.
    pub bind_errors: u32,
    /// Receives flushed.
    pub flushed_receives: u32,
    /// Requests flushed.
    pub flushed_requests: u32,
}

impl<P: Platform> Hca<'_, P> {
    /// A set of counters, for [`QpConfig::counters`](crate::QpConfig::counters).
    ///
    /// # Errors
    /// Any [`Error`] of a command.
    pub fn alloc_q_counters(&mut self) -> Result<CounterSet, Error> {
        let mut out = [0; alloc_q_counter_out::SIZE];
        self.exec(&input::<{ alloc_q_counter_in::SIZE }>(Opcode::ALLOC_Q_COUNTER, 0), &mut out)?;
        Ok(CounterSet::new(alloc_q_counter_out::counter_set_id.get(&out) as u8, self.firmware.generation()))
    }

    /// Ends a set of counters that no QP uses any more. A set from before a recovery is gone
    /// already.
    ///
    /// # Errors
    /// Any [`Error`] of a command; [`Error::NotAllocated`] for one of another HCA.
    pub fn dealloc_q_counters(&mut self, set: CounterSet) -> Result<(), Error> {
        let mut free = input::<{ dealloc_q_counter_in::SIZE }>(Opcode::DEALLOC_Q_COUNTER, 0);
        dealloc_q_counter_in::counter_set_id.set(&mut free, set.number());
        self.destroy(&set, &free, &mut [0; dealloc_q_counter_out::SIZE])
    }

    /// Reads a set of counters, and sets them to 0 with `clear`.
    ///
    /// # Errors
    /// Any [`Error`] of a command; [`Error::Stale`] for one of before a recovery.
    pub fn query_q_counters(&mut self, set: CounterSet, clear: bool) -> Result<QCounters, Error> {
        use query_q_counter_out as q;
        let mut query = input::<{ query_q_counter_in::SIZE }>(Opcode::QUERY_Q_COUNTER, 0);
        query_q_counter_in::counter_set_id.set(&mut query, self.firmware.resolve(&set)?);
        query_q_counter_in::clear.set(&mut query, clear);
        let mut out = [0; q::SIZE];
        self.exec(&query, &mut out)?;
        Ok(QCounters {
            rx_write_requests: q::rx_write_requests.get32(&out),
            rx_read_requests: q::rx_read_requests.get32(&out),
            rx_atomic_requests: q::rx_atomic_requests.get32(&out),
            out_of_buffer: q::out_of_buffer.get32(&out),
            out_of_sequence: q::out_of_sequence.get32(&out),
            duplicate_request: q::duplicate_request.get32(&out),
            rnr_nak_retry_err: q::rnr_nak_retry_err.get32(&out),
            packet_seq_err: q::packet_seq_err.get32(&out),
            implied_nak_seq_err: q::implied_nak_seq_err.get32(&out),
            local_ack_timeout_err: q::local_ack_timeout_err.get32(&out),
            transport_retries_exceeded: q::req_transport_retries_exceeded.get32(&out),
            remote_access_errors: q::req_remote_access_errors.get32(&out),
            responder_access_errors: q::resp_remote_access_errors.get32(&out),
            bind_errors: q::req_mw_binding.get32(&out),
            flushed_receives: q::resp_cqe_flush_error.get32(&out),
            flushed_requests: q::req_cqe_flush_error.get32(&out),
        })
    }
}
