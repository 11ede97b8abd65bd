//! CQEs of raw Ethernet.

use crate::object::nic::{Rq, Sq};
use crate::transport::Context;
use mlx5_prm::datapath::{CqeOpcode, SendOpcode, cqe64, err_cqe};
use mlx5_prm::status::CqeSyndrome;

/// Fields of an error CQE that depend on the queue.
struct Failed {
    cqn: u32,
    number: u32,
    user_index: u32,
    kind: CqeOpcode,
    opcode: u8,
}

impl Context<'_, '_> {
    /// Completes the send WQE at `index`.
    pub(super) fn complete_frame(&mut self, sq: &Sq, index: u16, opcode: SendOpcode) {
        let mut cqe = [0; cqe64::SIZE];
        cqe64::srqn.set(&mut cqe, sq.user_index);
        cqe64::s_wqe_opcode.set(&mut cqe, opcode.0);
        cqe64::qpn.set(&mut cqe, sq.sqn);
        cqe64::wqe_counter.set(&mut cqe, index);
        cqe64::opcode.set(&mut cqe, CqeOpcode::REQ.0);
        self.stamp(&mut cqe);
        self.push_cqe(sq.cqn, &cqe, None, false);
    }

    /// Completes the send WQE at `index` with an error.
    pub(super) fn fail_frame(&mut self, sq: &Sq, index: u16, opcode: SendOpcode, syndrome: CqeSyndrome) {
        let queue = Failed {
            cqn: sq.cqn,
            number: sq.sqn,
            user_index: sq.user_index,
            kind: CqeOpcode::REQ_ERR,
            opcode: opcode.0,
        };
        self.complete_failed(&queue, index, syndrome);
    }

    /// Completes the receive WQE at `index` with an error.
    pub(super) fn fail_receive(&mut self, rq: &Rq, index: u16, syndrome: CqeSyndrome) {
        let queue = Failed {
            cqn: rq.cqn,
            number: rq.rqn,
            user_index: rq.user_index,
            kind: CqeOpcode::RESP_ERR,
            opcode: 0,
        };
        self.complete_failed(&queue, index, syndrome);
    }

    fn complete_failed(&mut self, queue: &Failed, index: u16, syndrome: CqeSyndrome) {
        let mut cqe = [0; err_cqe::SIZE];
        err_cqe::srqn.set(&mut cqe, queue.user_index);
        err_cqe::syndrome.set(&mut cqe, syndrome.0);
        err_cqe::s_wqe_opcode.set(&mut cqe, queue.opcode);
        err_cqe::qpn.set(&mut cqe, queue.number);
        err_cqe::wqe_counter.set(&mut cqe, index);
        err_cqe::opcode.set(&mut cqe, queue.kind.0);
        self.push_cqe(queue.cqn, &cqe, None, true);
    }
}
