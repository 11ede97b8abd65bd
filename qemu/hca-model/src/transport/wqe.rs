//! Fetching send WQEs (PRM, work requests and completions).
use mlx5_prm::datapath::WQEBB_SIZE;

use super::data_path::DataPath;
use super::parser::{Bad, VENDOR_BAD_WQE};
use super::state::{Failure, Wqe};
use crate::meter::price;
use crate::object::qp::Qp;

impl DataPath<'_, '_> {
    /// Reads the send counter of the doorbell record. An error means that the QP cannot go on; it is logged.
    #[inline(always)]
    pub(super) fn refresh_posted(&mut self, qp: &mut Qp) -> Result<(), ()> {
        qp.read_posted(self.guest()).map_err(|fault| self.reports().refuse_queue(qp, fault))
    }

    /// Fetches the next posted WQE to `wqe`, which is new. A bad one carries its failure. Returns
    /// false without a WQE, or without room for it.
    pub(super) fn fetch(&mut self, qp: &mut Qp, wqe: &mut Wqe) -> bool {
        let Some(sq) = qp.rings().send() else { return false };
        let queue = &qp.transport.queue;
        let available = queue.posted.wrapping_sub(queue.fetched);
        if available == 0 {
            return false;
        }
        let index = queue.fetched;
        self.meter().charge(price::WQE);
        wqe.index = index;
        let (mut source, parser) = self.source();
        let mut head = [0; WQEBB_SIZE];
        let result = match source.read_head(qp, sq, index, available, &mut head) {
            Ok(len) => {
                wqe.blocks = len.div_ceil(WQEBB_SIZE) as u16;
                match head.get(..len) {
                    Some(bytes) => parser.parse(qp, bytes, wqe),
                    None if !source.has_room(qp, wqe.blocks) => return false,
                    None => parser.parse_long(source.memory(), qp, sq, &head, len, wqe),
                }
            }
            Err(bad) => Err(bad),
        };
        if let Err(Bad(field, text, syndrome)) = result {
            self.reports().refuse_work(qp, Some(index), field, text);
            wqe.failure = Some(Failure { syndrome, vendor: VENDOR_BAD_WQE });
        }
        qp.transport.queue.fetched = index.wrapping_add(wqe.blocks);
        true
    }
}
