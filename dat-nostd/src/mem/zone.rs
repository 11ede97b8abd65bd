//! A protection zone. DAT 1.2, memory management.

use driver_mlx::Pd;

use crate::base::handle::{HandleType, IaHandle};
use crate::base::ret::DatResult;
use crate::base::table::of_ia;
use crate::base::users::Users;

/// A protection zone.
#[derive(Debug)]
pub struct Pz {
    ia: IaHandle,
    pd: Pd,
    /// Objects that refer to it.
    users: Users,
}

of_ia! { Pz }

impl Pz {
    /// A zone that nothing refers to.
    pub(crate) fn new(ia: IaHandle, pd: Pd) -> Self {
        Self { ia, pd, users: Users::default() }
    }

    pub(crate) fn pd(&self) -> Pd {
        self.pd
    }

    /// Its protection domain, if it is of this IA.
    pub(crate) fn domain(&self, ia: IaHandle) -> DatResult<Pd> {
        self.ia.check(ia, HandleType::Pz)?;
        Ok(self.pd)
    }

    /// Returns the count of objects that refer to it.
    pub(crate) fn users(&self) -> &Users {
        &self.users
    }

    pub(crate) fn users_mut(&mut self) -> &mut Users {
        &mut self.users
    }
}
