//! The tables of an adapter: everything that consumers have made.

use crate::adapter::shared::Shared;
use driver_mlx::Bar;

use crate::base::handle::{
    CrHandle, EpHandle, EvdHandle, IaHandle, LmrHandle, PspHandle, PzHandle, RspHandle,
};
use crate::base::table::Table;
use crate::cno::Cnos;
use crate::conn::cr::Cr;
use crate::conn::service::{Psp, Rsp};
use crate::ep::Ep;
use crate::evd::Evd;
use crate::evd::queue::EventPool;
use crate::ia::instance::Ia;
use crate::mem::lmr::Lmr;
use crate::mem::zone::Pz;
use crate::srq::draining::EndedQp;

/// The tables of an adapter.
pub(crate) struct Objects<'s, B: Bar> {
    pub(crate) ias: Table<'s, IaHandle, Ia>,
    pub(crate) pzs: Table<'s, PzHandle, Pz>,
    pub(crate) lmrs: Table<'s, LmrHandle, Lmr>,
    pub(crate) evds: Table<'s, EvdHandle, Evd<B>>,
    pub(crate) eps: Table<'s, EpHandle, Ep<B>>,
    pub(crate) psps: Table<'s, PspHandle, Psp>,
    pub(crate) rsps: Table<'s, RspHandle, Rsp>,
    pub(crate) cnos: Cnos<'s>,
    pub(crate) shared: Shared<'s>,
    /// QPs on SRQs whose EPs are gone. The handles of this table never leave the adapter.
    pub(crate) draining: Table<'s, EpHandle, EndedQp<B>>,
    pub(crate) crs: Table<'s, CrHandle, Cr>,
    /// Events queued in software.
    pub(crate) events: EventPool<'s>,
}

impl<B: Bar> Objects<'_, B> {
    /// The adapter of handles from now on.
    pub(crate) fn set_adapter(&mut self, adapter: u8) {
        self.ias.set_adapter(adapter);
        self.pzs.set_adapter(adapter);
        self.lmrs.set_adapter(adapter);
        self.evds.set_adapter(adapter);
        self.eps.set_adapter(adapter);
        self.psps.set_adapter(adapter);
        self.rsps.set_adapter(adapter);
        self.cnos.table_mut().set_adapter(adapter);
        self.crs.set_adapter(adapter);
        self.shared.srqs.set_adapter(adapter);
        self.shared.windows.table_mut().set_adapter(adapter);
    }
}
