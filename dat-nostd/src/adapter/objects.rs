//! The tables of an adapter: everything that consumers have made.

use driver_mlx::{Bar, HcaParts};
use ib_port::PortParts;

use crate::adapter::census::AdapterCensus;
use crate::adapter::storage::AdapterParts;
use crate::base::handle::{
    CnoHandle, CrHandle, EpHandle, EvdHandle, IaHandle, LmrHandle, PspHandle, PzHandle, RmrHandle, RspHandle,
    SrqHandle, Typed,
};
use crate::base::ret::DatResult;
use crate::base::table::Table;
use crate::cno::{Cno, Cnos};
use crate::conn::cr::Cr;
use crate::conn::service::{Psp, Rsp};
use crate::ep::Ep;
use crate::evd::Evd;
use crate::evd::evds::Evds;
use crate::ia::instance::Ia;
use crate::mem::lmr::Lmr;
use crate::mem::rmr::{Rmr, Windows};
use crate::mem::zone::Pz;
use crate::srq::draining::Srqs;
use crate::srq::queue::Srq;

/// The tables of an adapter. A post looks up in one cache line of it, a dequeue in two.
#[repr(C, align(64))]
pub(crate) struct Objects<'s, B: Bar> {
    lmrs: Table<'s, LmrHandle, Lmr>,
    eps: Table<'s, EpHandle, Ep<B>>,
    evds: Evds<'s, B>,
    ias: Table<'s, IaHandle, Ia>,
    pzs: Table<'s, PzHandle, Pz>,
    psps: Table<'s, PspHandle, Psp>,
    rsps: Table<'s, RspHandle, Rsp>,
    cnos: Cnos<'s>,
    srqs: Srqs<'s, B>,
    windows: Windows<'s>,
    crs: Table<'s, CrHandle, Cr>,
}

/// Tables that one step changes together.
pub(crate) struct Tables<'a, 's, B: Bar> {
    pub(crate) pzs: &'a mut Table<'s, PzHandle, Pz>,
    pub(crate) lmrs: &'a mut Table<'s, LmrHandle, Lmr>,
    pub(crate) evds: &'a mut Evds<'s, B>,
    pub(crate) eps: &'a mut Table<'s, EpHandle, Ep<B>>,
    pub(crate) srqs: &'a mut Srqs<'s, B>,
    pub(crate) windows: &'a mut Windows<'s>,
}

/// A handle of an object in the tables.
pub(crate) trait Named<'s, B: Bar>: Typed + 'static {
    type Object: 's;
    fn table<'a>(objects: &'a Objects<'s, B>) -> &'a Table<'s, Self, Self::Object>;
    fn table_mut<'a>(objects: &'a mut Objects<'s, B>) -> &'a mut Table<'s, Self, Self::Object>;
}

/// Defines the tables of handles. Calls `set_adapter` on each.
macro_rules! named {
    ($($handle:ident => $object:ty: $objects:ident, $table:expr, $table_mut:expr;)*) => {
        $(impl<'s, B: Bar + 's> Named<'s, B> for $handle {
            type Object = $object;

            #[inline]
            fn table<'a>($objects: &'a Objects<'s, B>) -> &'a Table<'s, Self, Self::Object> {
                $table
            }

            #[inline]
            fn table_mut<'a>($objects: &'a mut Objects<'s, B>) -> &'a mut Table<'s, Self, Self::Object> {
                $table_mut
            }
        })*

        impl<'s, B: Bar> Objects<'s, B> {
            /// The adapter of handles from now on.
            pub(crate) fn set_adapter(&mut self, adapter: u8) {
                $(self.table_mut::<$handle>().set_adapter(adapter);)*
            }
        }
    };
}

named! {
    IaHandle => Ia: objects, &objects.ias, &mut objects.ias;
    PzHandle => Pz: objects, &objects.pzs, &mut objects.pzs;
    LmrHandle => Lmr: objects, &objects.lmrs, &mut objects.lmrs;
    EvdHandle => Evd<B>: objects, objects.evds.table(), objects.evds.table_mut();
    EpHandle => Ep<B>: objects, &objects.eps, &mut objects.eps;
    PspHandle => Psp: objects, &objects.psps, &mut objects.psps;
    RspHandle => Rsp: objects, &objects.rsps, &mut objects.rsps;
    CnoHandle => Cno: objects, objects.cnos.table(), objects.cnos.table_mut();
    SrqHandle => Srq: objects, objects.srqs.table(), objects.srqs.table_mut();
    RmrHandle => Rmr: objects, objects.windows.table(), objects.windows.table_mut();
    CrHandle => Cr: objects, &objects.crs, &mut objects.crs;
}

impl<'s, B: Bar> Objects<'s, B> {
    /// Without any, over these places. Returns those of the HCA and its port as well.
    // Code size: inlined, its locals share a frame so large that each access takes four more bytes.
    #[inline(never)]
    pub(super) fn new(parts: AdapterParts<'s, B>) -> (Self, (HcaParts<'s>, PortParts<'s>)) {
        let objects = Self {
            ias: Table::new(parts.ias),
            pzs: Table::new(parts.pzs),
            lmrs: Table::new(parts.lmrs),
            evds: Evds::new(parts.evds, parts.events, parts.evd_waits, parts.cq_chains),
            eps: Table::new(parts.eps),
            psps: Table::new(parts.psps),
            rsps: Table::new(parts.rsps),
            cnos: Cnos::new(parts.cnos, parts.cno_waits),
            srqs: Srqs::new(parts.srqs, parts.draining),
            windows: Windows::new(parts.rmrs, parts.binds),
            crs: Table::new(parts.crs),
        };
        (objects, (parts.hca, parts.port))
    }

    /// The objects of one kind.
    #[inline]
    pub(crate) fn table<H: Named<'s, B>>(&self) -> &Table<'s, H, H::Object> {
        H::table(self)
    }

    #[inline]
    pub(crate) fn table_mut<H: Named<'s, B>>(&mut self) -> &mut Table<'s, H, H::Object> {
        H::table_mut(self)
    }

    /// The object, or INVALID_HANDLE.
    #[inline]
    pub(crate) fn get<H: Named<'s, B>>(&self, handle: H) -> DatResult<&H::Object> {
        H::table(self).get(handle)
    }

    #[inline]
    pub(crate) fn get_mut<H: Named<'s, B>>(&mut self, handle: H) -> DatResult<&mut H::Object> {
        H::table_mut(self).get_mut(handle)
    }

    /// Removes the object. Its handle is invalid from now on.
    pub(crate) fn remove<H: Named<'s, B>>(&mut self, handle: H) -> DatResult<H::Object> {
        H::table_mut(self).remove(handle)
    }

    /// The EPs.
    #[inline]
    pub(crate) fn eps(&self) -> &Table<'s, EpHandle, Ep<B>> {
        &self.eps
    }

    #[inline]
    pub(crate) fn eps_mut(&mut self) -> &mut Table<'s, EpHandle, Ep<B>> {
        &mut self.eps
    }

    /// Tables that one step changes together.
    #[inline]
    pub(crate) fn split(&mut self) -> Tables<'_, 's, B> {
        let Self { pzs, lmrs, evds, eps, srqs, windows, .. } = self;
        Tables { pzs, lmrs, evds, eps, srqs, windows }
    }

    /// The EVDs, and those that are due.
    #[inline]
    pub(crate) fn evds_mut(&mut self) -> &mut Evds<'s, B> {
        &mut self.evds
    }

    /// The CNOs, and those that are due.
    pub(crate) fn cnos(&self) -> &Cnos<'s> {
        &self.cnos
    }

    pub(crate) fn cnos_mut(&mut self) -> &mut Cnos<'s> {
        &mut self.cnos
    }

    /// The SRQs, and the QPs that hold buffers of theirs.
    pub(crate) fn srqs(&self) -> &Srqs<'s, B> {
        &self.srqs
    }

    pub(crate) fn srqs_mut(&mut self) -> &mut Srqs<'s, B> {
        &mut self.srqs
    }

    /// The memory windows and their binds.
    pub(crate) fn windows(&self) -> &Windows<'s> {
        &self.windows
    }

    pub(crate) fn windows_mut(&mut self) -> &mut Windows<'s> {
        &mut self.windows
    }

    /// Counts the objects. The counts of connections and bytes are those of `rest`.
    pub(super) fn census(&self, rest: AdapterCensus) -> AdapterCensus {
        AdapterCensus {
            ias: self.ias.len(),
            pzs: self.pzs.len(),
            lmrs: self.lmrs.len(),
            evds: self.evds.table().len(),
            eps: self.eps.len(),
            psps: self.psps.len(),
            rsps: self.rsps.len(),
            crs: self.crs.len(),
            cnos: self.cnos.len(),
            srqs: self.srqs.table().len(),
            rmrs: self.windows.table().len(),
            events: self.evds.events().used(),
            events_reserved: self.evds.events().reserved(),
            closing: rest.closing + self.srqs.draining(),
            ..rest
        }
    }
}
