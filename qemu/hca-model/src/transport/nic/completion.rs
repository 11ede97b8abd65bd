//! CQEs of raw Ethernet.

use super::Frames;
use crate::object::nic::{Rq, Sq};
use crate::transport::state::Failure;
use mlx5_prm::datapath::{CqeOpcode, SendOpcode, cqe64};
use mlx5_prm::status::CqeSyndrome;

impl Frames<'_, '_> {
    /// Completes the send WQE at `index`.
    pub(super) fn complete_frame(&mut self, sq: &Sq, index: u16, opcode: SendOpcode) {
        let mut cqe = [0; cqe64::SIZE];
        cqe64::srqn.set(&mut cqe, sq.user_index);
        cqe64::s_wqe_opcode.set(&mut cqe, opcode.0);
        cqe64::qpn.set(&mut cqe, sq.sqn);
        cqe64::wqe_counter.set(&mut cqe, index);
        cqe64::opcode.set(&mut cqe, CqeOpcode::REQ.0);
        self.path.delivery().stamp(&mut cqe);
        self.path.delivery().push_cqe(sq.cqn, &cqe, None, false);
    }

    /// Completes the send WQE at `index` with an error.
    pub(super) fn fail_frame(&mut self, sq: &Sq, index: u16, opcode: SendOpcode, syndrome: CqeSyndrome) {
        let failure = Failure { syndrome, vendor: 0 };
        let kind = CqeOpcode::REQ_ERR;
        self.path.delivery().complete_error(sq.sqn, sq.cqn, index, kind, opcode.0, sq.user_index, failure);
    }

    /// Completes the receive WQE at `index` with an error.
    pub(super) fn fail_receive(&mut self, rq: &Rq, index: u16, syndrome: CqeSyndrome) {
        let failure = Failure { syndrome, vendor: 0 };
        self.path.delivery().complete_error(
            rq.rqn,
            rq.cqn,
            index,
            CqeOpcode::RESP_ERR,
            0,
            rq.user_index,
            failure,
        );
    }
}
