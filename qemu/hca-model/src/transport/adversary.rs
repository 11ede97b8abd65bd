//! Data path of a card that forgives no mistake ([`Adversary`](crate::adversary::Adversary)): work
//! queues read at the doorbell, WQEs taken from BlueFlame buffers, receives written late.

use mlx5_prm::value::QpState;

use super::blueflame::{Pushed, index_of};
use super::data_path::DataPath;
use super::state::{QpTransport, SendRing};
use crate::device::Device;
use crate::log::Subject;
use crate::object::qp::Qp;
use crate::run::Data;
use crate::seams::Io;

impl QpTransport {
    /// A BlueFlame buffer was rung with the first 8 bytes of a WQE.
    pub(crate) fn begin_push(&mut self, head: [u8; 8]) {
        self.pushed = Some(Box::new(Pushed::new(head)));
    }

    /// Takes the bytes at `at` of the BlueFlame buffer. Posts the WQE once it is complete, if it is the next one and
    /// fits into the ring of `blocks` basic blocks. The doorbell record does not matter. Returns whether it posted.
    pub(crate) fn push(&mut self, at: usize, bytes: &[u8], blocks: u32) -> bool {
        let Some(pushed) = &mut self.pushed else { return false };
        let is_full = u32::from(self.queue.under_way()) >= blocks;
        let SendRing { posted, fetched, rung, .. } = &mut self.queue;
        let is_last = posted.wrapping_sub(*fetched) <= 1;
        if !pushed.add(at, bytes) || is_full || !is_last || !pushed.set_next(*fetched) {
            return false;
        }
        (*posted, *rung) = (fetched.wrapping_add(1), false);
        true
    }
}

impl DataPath<'_, '_> {
    /// Reads the doorbell record and compares the WQE with the doorbell's 8 bytes. Software writes the
    /// WQE first, then the record, then the doorbell.
    fn read_at_doorbell(&mut self, qp: &mut Qp, head: [u8; 8]) {
        if !matches!(qp.state(), QpState::RTS | QpState::SQD | QpState::SQ_DRAINING) {
            return;
        }
        let Some(sq) = qp.rings().send() else { return };
        if self.refresh_posted(qp).is_err() {
            return self.catastrophe(qp);
        }
        let (index, queue, subject) =
            (index_of(head), &qp.transport.queue, Subject::WorkQueue { qpn: qp.qpn() });
        let behind = queue.fetched.wrapping_sub(index);
        if (1..=sq.blocks()).contains(&u32::from(behind)) {
            // An earlier doorbell has brought it along.
            return;
        }
        if index.wrapping_sub(queue.fetched) >= queue.posted.wrapping_sub(queue.fetched) {
            let text = format!("{:#x}, at the doorbell of WQE {index:#x}", queue.posted);
            return self.reports().refuse(subject, "qp_doorbell_record.send_counter", text);
        }
        let mut held = [0; 8];
        let read = qp.rings().read(self.guest(), sq.block(index), &mut held);
        if read.is_err() || held != head {
            let text = format!("WQE {index:#x} is not that of the doorbell");
            self.reports().refuse_work(qp, None, "wqe_ctrl_seg", text);
            self.catastrophe(qp);
        }
    }

    /// Writes to the buffers of the next receive in the QP's own queue.
    fn write_next_receive(&mut self, qp: &mut Qp) {
        if !matches!(qp.state(), QpState::RTR | QpState::RTS | QpState::SQD | QpState::SQ_DRAINING) {
            return;
        }
        let Ok(receive) = self.own_receive(qp) else { return };
        let data = [0xdd; 64];
        let len = receive.capacity.min(data.len() as u64) as usize;
        // A key that is gone protects the memory.
        let _ = self.memory().scatter(
            receive.user(qp.qpn()),
            receive.sges.as_slice(),
            0,
            &Data::Bytes(data.get(..len).unwrap_or_default()),
        );
    }
}

impl Device {
    /// The send doorbell of QP `qpn` was rung with these bytes of a WQE.
    #[cold]
    pub(crate) fn read_at_doorbell(&mut self, io: &mut Io<'_>, qpn: u32, head: [u8; 8]) {
        let (qps, mut context) = self.split(io);
        if let Some(qp) = qps.get_mut(qpn) {
            context.read_at_doorbell(qp, head);
        }
    }

    /// QP `qpn` is about to lose its receives.
    pub(crate) fn write_next_receive(&mut self, io: &mut Io<'_>, qpn: u32) {
        let (qps, mut context) = self.split(io);
        if let Some(qp) = qps.get_mut(qpn) {
            context.write_next_receive(qp);
        }
    }
}
