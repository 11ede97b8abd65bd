//! What writes to UAR pages do (PRM, UAR page format).

use crate::device::Device;
use crate::log::Subject;
use crate::object::uar::{BlueFlame, Doorbell, UAR_PAGE, Uar};
use crate::seams::Io;

impl Device {
    /// A write of at most 8 bytes, within one 64-bit unit of a UAR page.
    #[inline(always)]
    pub(crate) fn write_uar(&mut self, io: &mut Io<'_>, offset: usize, bytes: &[u8]) {
        let habits = &self.profile.habits.adversary;
        if habits.blueflame | habits.eager_fetch {
            return self.write_uar_by_habit(io, offset, bytes);
        }
        self.ring_uar(io, offset, bytes);
    }

    /// Like [`write_uar`](Self::write_uar), for cards to which the bytes of a send doorbell matter.
    #[cold]
    #[inline(never)]
    fn write_uar_by_habit(&mut self, io: &mut Io<'_>, offset: usize, bytes: &[u8]) {
        if !self.ring_uar(io, offset, bytes) {
            return;
        }
        let habits = self.profile.habits.adversary;
        // In two halves a doorbell does not say more than its QP.
        let Ok(head) = <[u8; 8]>::try_from(bytes) else { return };
        let Some(qpn) = Uar::send_doorbell(offset % UAR_PAGE, head) else { return };
        let page = (offset / UAR_PAGE) as u32;
        if self.objects.qps.get(qpn).is_none_or(|qp| qp.uar_page() != page) {
            return;
        }
        if habits.eager_fetch {
            self.read_at_doorbell(io, qpn, head);
        }
        if let Some(qp) = self.objects.qps.get_mut(qpn).filter(|_| habits.blueflame) {
            qp.transport.begin_push(head);
        }
    }

    /// Returns false if the device or the page takes no writes.
    fn ring_uar(&mut self, io: &mut Io<'_>, offset: usize, bytes: &[u8]) -> bool {
        // A driver that has disabled the interface may still have an interrupt handler on its way out.
        if self.health.is_fatal() || !self.cmd.started() {
            return false;
        }
        let page = (offset / UAR_PAGE) as u32;
        let subject = Subject::Register { offset };
        let Some(uar) = self.objects.uars.get_mut(page) else {
            let text = format!("UAR page {page:#x} is not allocated");
            self.log.refuse(subject, "alloc_uar_out.uar", text);
            return false;
        };
        match uar.write(offset % UAR_PAGE, bytes) {
            Doorbell::Nothing => {}
            Doorbell::Eq { arm, value } => {
                self.objects.queues.ring_eq(io, &mut self.log, page, value, arm);
            }
            Doorbell::Cq(value) => {
                let habits = &self.profile.habits.adversary;
                self.objects.queues.ring_cq(io, &mut self.log, habits, page, value);
            }
            Doorbell::Send { qpn } => self.ring_send(page, qpn),
            Doorbell::BlueFlame { rung: Some(rung), at } => self.compare_blueflame(io, page, rung, at, bytes),
            Doorbell::BlueFlame { rung: None, .. } => {
                self.log.refuse(subject, "", "BlueFlame data without the start of a WQE");
            }
            Doorbell::Unknown => self.log.refuse(subject, "", "no register here"),
        }
        true
    }

    /// The first 8 bytes of a WQE were written to a BlueFlame buffer.
    fn ring_send(&mut self, page: u32, qpn: u32) {
        let subject = Subject::WorkQueue { qpn };
        let Some(qp) = self.objects.qps.get_mut(qpn) else {
            if !self.ring_sq(page, qpn) {
                self.log.refuse(subject, "wqe_ctrl_seg.qpn_ds", "doorbell of a QP that does not exist");
            }
            return;
        };
        if qp.uar_page() != page {
            let text = format!("rung through page {page:#x}, created with {:#x}", qp.uar_page());
            self.log.refuse(subject, "qpc.uar_page", text);
            return;
        }
        if qp.rings().send().is_none() {
            self.log.refuse(subject, "qpc.no_sq", "doorbell of a QP without a send queue");
            return;
        }
        self.transport.ring(qp);
    }

    /// Further bytes of a BlueFlame post, `at` bytes from the start of the buffer: the ring in memory must hold the same.
    fn compare_blueflame(&mut self, io: &mut Io<'_>, page: u32, rung: BlueFlame, at: usize, bytes: &[u8]) {
        let BlueFlame { qpn, wqe_index } = rung;
        if at < 16 {
            self.transport.counters.blueflame += 1;
        }
        let Some(qp) = self.objects.qps.get_mut(qpn) else { return };
        let Some(sq) = qp.rings().send() else { return };
        if self.profile.habits.adversary.blueflame && qp.transport.push(at, bytes, sq.blocks()) {
            self.transport.schedule(qp);
        }
        let at = u64::from(wqe_index) * 64 + at as u64;
        let mut held = [0; 8];
        let Some(held) = held.get_mut(..bytes.len()) else { return };
        let subject = Subject::WorkQueue { qpn };
        if let Err(fault) = qp.rings().read(io.memory, sq.offset(at), held) {
            self.log.refuse(subject, "create_qp_in.pas", fault.to_string());
        } else if held != bytes {
            // Linux finds out by such a difference whether write combining works, so it is no mistake in itself.
            let new = self.objects.uars.get_mut(page).is_some_and(|uar| uar.differs(qpn));
            if new {
                let text = format!(
                    "BlueFlame data differs from the ring at byte {:#x}; the ring counts",
                    at % sq.bytes()
                );
                self.log.info(subject, text);
            }
        }
    }
}
