//! Raw Ethernet: frames from send queues, and frames to receive queues.
//!
//! | module | subject |
//! |---|---|
//! | `state` | what is kept |
//! | `wqe` | fetching send WQEs |
//! | `transmit` | making frames: checksums, VLAN tags, segmentation |
//! | `fields` | match fields and hash of a frame |
//! | `receive` | from a frame to its receive queues |
//! | `completion` | CQEs |

mod completion;
mod fields;
mod receive;
mod state;
mod transmit;
mod wqe;

use super::data_path::DataPath;
use crate::device::Device;
use crate::log::Subject;
use crate::meter::price;
use crate::seams::Io;
use mlx5_prm::event::{EventQueueType, EventType};
use mlx5_prm::value::WqState;

pub use state::NicTransport;

/// Send WQEs of one queue before the next has its turn.
const TURN: usize = 16;

/// The data path of raw Ethernet.
struct Frames<'a, 'io> {
    path: DataPath<'a, 'io>,
    transport: &'a mut NicTransport,
}

impl Device {
    /// A send queue was rung through UAR page `page`. Returns false if there is no such queue.
    pub(crate) fn ring_sq(&mut self, page: u32, sqn: u32) -> bool {
        let Some(sq) = self.objects.nic.sqs.get_mut(sqn) else { return false };
        if sq.uar_page == page {
            sq.rung = true;
            self.nic.schedule(sq);
        } else {
            let text = format!("rung through page {page:#x}, created with {:#x}", sq.uar_page);
            self.log.refuse(Subject::WorkQueue { qpn: sqn }, "wq.uar_page", text);
        }
        true
    }

    /// CQ `cqn` failed: the queues that use it go to ERR.
    pub(super) fn cq_of_nic_failed(&mut self, io: &mut Io<'_>, cqn: u32) {
        let (_, nic, _, mut path) = self.parts(io);
        for (sqn, sq) in nic.sqs.iter_mut().filter(|(_, sq)| sq.cqn == cqn && sq.state == WqState::RDY) {
            sq.state = WqState::ERR;
            path.delivery().event(EventQueueType::SQ, sqn, EventType::WQ_CATAS_ERROR);
        }
        for (rqn, rq) in nic.rqs.iter_mut().filter(|(_, rq)| rq.cqn == cqn && rq.state == WqState::RDY) {
            rq.state = WqState::ERR;
            path.delivery().event(EventQueueType::RQ, rqn, EventType::WQ_CATAS_ERROR);
        }
    }

    /// Sends frames, at most about `budget` WQEs. Returns whether more could be done at once.
    pub(crate) fn poll_nic(&mut self, io: &mut Io<'_>, mut budget: usize) -> bool {
        for _ in 0..self.nic.loopback.len() {
            if self.meter.is_spent() {
                break;
            }
            let Some(own) = self.nic.loopback.pop_front() else { break };
            self.receive_own(io, &own);
            io.wire.give_buffer(own.bytes);
        }
        while budget != 0
            && !self.meter.is_spent()
            && io.wire.has_credit()
            && let Some(sqn) = self.nic.run.pop_front()
        {
            let (_, nic, transport, path) = self.parts(io);
            let mut frames = Frames { path, transport };
            let Some(sq) = nic.sqs.get_mut(sqn) else { continue };
            sq.scheduled = false;
            frames.path.meter().charge(price::LOOK);
            let mut turn = TURN.min(budget);
            budget -= turn;
            let more = match sq.state {
                WqState::RDY => frames.send_frames(sq, &mut turn),
                WqState::ERR => frames.flush_sq(sq, &mut turn),
                _ => false,
            };
            if more {
                frames.transport.schedule(sq);
            }
            budget += turn;
        }
        io.wire.has_credit() && !self.nic.is_idle()
    }
}
