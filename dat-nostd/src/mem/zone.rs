//! A protection zone. DAT 1.2, memory management.

use driver_mlx::Pd;

use crate::base::handle::{HandleType, IaHandle};
use crate::base::ret::DatResult;
use crate::base::table::of_ia;

/// A protection zone.
#[derive(Debug)]
pub struct Pz {
    ia: IaHandle,
    pd: Pd,
    /// Objects that refer to it.
    users: u32,
}

of_ia! { Pz }

impl Pz {
    /// A zone that nothing refers to.
    pub(crate) fn new(ia: IaHandle, pd: Pd) -> Self {
        Self { ia, pd, users: 0 }
    }

    pub(crate) fn pd(&self) -> Pd {
        self.pd
    }

    /// Its protection domain, if it is of this IA.
    pub(crate) fn domain(&self, ia: IaHandle) -> DatResult<Pd> {
        self.ia.check(ia, HandleType::Pz)?;
        Ok(self.pd)
    }

    /// Returns whether an object refers to it.
    pub(crate) fn is_used(&self) -> bool {
        self.users > 0
    }

    /// Counts an object that refers to it.
    pub(crate) fn attach(&mut self) {
        self.users += 1;
    }

    /// Counts out an object that referred to it.
    pub(crate) fn detach(&mut self) {
        self.users = self.users.saturating_sub(1);
    }
}
