//! Copies within one HCA's memory, ordered by a send queue (PRM, "Memory to Memory Operations").

use mlx5_prm::status::CqeSyndrome;
use mlx5_prm::value::AccessFlags;

use super::completion::vendor;
use super::data_path::DataPath;
use super::state::{Failure, Sge};
use crate::object::qp::Qp;
use crate::run::Data;

impl DataPath<'_, '_> {
    /// Copies. A refusal is logged and comes back as what the WQE's completion says; if a key refuses, nothing is written.
    pub(super) fn execute_copy(
        &mut self,
        qp: &mut Qp,
        index: u16,
        [from, to]: [Sge; 2],
    ) -> Result<(), Failure> {
        let mut buffer = core::mem::take(&mut self.state().buffer);
        buffer.resize(from.len as usize, 0);
        let (user, mut memory) = (qp.user(), self.memory());
        let read = memory.read_key(user, from.lkey, from.address, AccessFlags::LOCAL_READ, &mut buffer);
        let copied = read.and_then(|()| {
            let data = Data::Bytes(&buffer);
            memory.write_key(user, to.lkey, to.address, AccessFlags::LOCAL_WRITE, &data)
        });
        self.state().buffer = buffer;
        copied.map_err(|fault| {
            self.reports().refuse_data(qp, index, fault);
            Failure { syndrome: CqeSyndrome::LOCAL_PROT_ERR, vendor: vendor::LOCAL_PROTECTION }
        })
    }
}
