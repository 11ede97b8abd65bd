//! A protection zone. DAT 1.2, memory management.

use driver_mlx::Pd;

use crate::base::handle::{HandleType, IaHandle};
use crate::base::ret::DatResult;

/// A protection zone.
#[derive(Debug)]
pub struct Pz {
    pub(crate) ia: IaHandle,
    pub(crate) pd: Pd,
    /// Objects that refer to it.
    pub(crate) users: u32,
}

impl Pz {
    /// Its protection domain, if it is of this IA.
    pub(crate) fn domain(&self, ia: IaHandle) -> DatResult<Pd> {
        self.ia.check(ia, HandleType::Pz)?;
        Ok(self.pd)
    }
}
