//! What a node's consumer may expect, by the specification alone: which objects live, what refers to what, and in which state
//! endpoints can be.

use dat_nostd::*;
use std::collections::{BTreeMap, BTreeSet};

pub struct Evd {
    pub ia: IaHandle,
    pub flags: EvdFlags,
    pub waitable: bool,
    /// Who waits; perhaps one whose wait was ended by `evd_set_unwaitable` and who does not know yet.
    pub waiter: Option<EvdWaiter<'static>>,
    pub cno: Option<CnoHandle>,
}

pub struct Ep {
    pub ia: IaHandle,
    pub pz: Option<PzHandle>,
    pub recv: Option<EvdHandle>,
    pub request: Option<EvdHandle>,
    pub connect: Option<EvdHandle>,
    pub srq: Option<SrqHandle>,
    /// As last seen.
    pub state: EpState,
}

pub struct Lmr {
    pub ia: IaHandle,
    pub pz: PzHandle,
    pub triplet: LmrTriplet,
    pub rights: MemPriv,
}

pub struct Rmr {
    pub ia: IaHandle,
    pub pz: PzHandle,
    /// Regions that it was ever bound to.
    pub bound: BTreeSet<LmrHandle>,
}

/// Everything of a node, by handle.
#[derive(Default)]
pub struct Model {
    /// With their asynchronous EVD.
    pub ias: BTreeMap<IaHandle, EvdHandle>,
    pub pzs: BTreeMap<PzHandle, IaHandle>,
    pub lmrs: BTreeMap<LmrHandle, Lmr>,
    pub rmrs: BTreeMap<RmrHandle, Rmr>,
    pub evds: BTreeMap<EvdHandle, Evd>,
    /// With who waits.
    pub cnos: BTreeMap<CnoHandle, (IaHandle, Vec<CnoWaiter<'static>>)>,
    pub srqs: BTreeMap<SrqHandle, (IaHandle, PzHandle)>,
    pub eps: BTreeMap<EpHandle, Ep>,
    /// With qualifier and EVD.
    pub psps: BTreeMap<PspHandle, (IaHandle, u64, EvdHandle)>,
    pub rsps: BTreeMap<RspHandle, (IaHandle, u64, EvdHandle, Option<EpHandle>)>,
    /// With their IA, if their service point lived when they were seen, and the EP that they brought.
    pub crs: BTreeMap<CrHandle, (Option<IaHandle>, Option<EpHandle>)>,
    /// Contexts that were set.
    pub contexts: BTreeMap<Handle, u64>,
    /// Bits of handles that are dead.
    pub dead: Vec<u64>,
}

/// Where an endpoint can be when it was here, without a call of its consumer.
pub fn reachable(from: EpState) -> &'static [EpState] {
    use EpState::*;
    match from {
        Unconnected => &[Unconnected],
        Reserved => &[Reserved, PassiveConnectionPending],
        PassiveConnectionPending => &[PassiveConnectionPending],
        TentativeConnectionPending => &[TentativeConnectionPending],
        ActiveConnectionPending => &[ActiveConnectionPending, Connected, DisconnectPending, Disconnected],
        CompletionPending => &[CompletionPending, Connected, DisconnectPending, Disconnected],
        Connected => &[Connected, DisconnectPending, Disconnected],
        DisconnectPending => &[DisconnectPending, Disconnected],
        Disconnected => &[Disconnected],
    }
}

impl Model {
    pub fn evd_is_fed(&self, evd: EvdHandle) -> bool {
        let of_ep = |ep: &Ep| [ep.recv, ep.request, ep.connect].contains(&Some(evd));
        self.eps.values().any(of_ep)
            || self.psps.values().any(|psp| psp.2 == evd)
            || self.rsps.values().any(|rsp| rsp.2 == evd)
    }

    pub fn pz_is_used(&self, pz: PzHandle) -> bool {
        self.eps.values().any(|ep| ep.pz == Some(pz))
            || self.lmrs.values().any(|lmr| lmr.pz == pz)
            || self.rmrs.values().any(|rmr| rmr.pz == pz)
            || self.srqs.values().any(|srq| srq.1 == pz)
    }

    pub fn srq_is_used(&self, srq: SrqHandle) -> bool {
        self.eps.values().any(|ep| ep.srq == Some(srq))
    }

    pub fn cno_is_used(&self, cno: CnoHandle) -> bool {
        self.cnos.get(&cno).is_some_and(|cno| !cno.1.is_empty())
            || self.evds.values().any(|evd| evd.cno == Some(cno))
    }

    /// EPs that a request came for.
    pub fn waiting_for_answer(&self) -> impl Iterator<Item = EpHandle> {
        let passive = |ep: &Ep| ep.state == EpState::PassiveConnectionPending;
        self.eps.iter().filter(move |(_, ep)| passive(ep)).map(|(handle, _)| *handle)
    }

    pub fn was_bound(&self, lmr: LmrHandle) -> bool {
        self.rmrs.values().any(|rmr| rmr.bound.contains(&lmr))
    }

    /// Objects of an IA, its asynchronous EVD not counted.
    pub fn objects_of(&self, ia: IaHandle) -> usize {
        let own = self.ias.get(&ia).copied();
        self.pzs.values().filter(|of| **of == ia).count()
            + self.lmrs.values().filter(|lmr| lmr.ia == ia).count()
            + self.rmrs.values().filter(|rmr| rmr.ia == ia).count()
            + self.evds.iter().filter(|(evd, of)| of.ia == ia && Some(**evd) != own).count()
            + self.cnos.values().filter(|cno| cno.0 == ia).count()
            + self.srqs.values().filter(|srq| srq.0 == ia).count()
            + self.eps.values().filter(|ep| ep.ia == ia).count()
            + self.psps.values().filter(|psp| psp.0 == ia).count()
            + self.rsps.values().filter(|rsp| rsp.0 == ia).count()
    }

    pub fn is_evd(&self, evd: Option<EvdHandle>, flag: EvdFlags) -> bool {
        evd.is_none_or(|evd| self.evds.get(&evd).is_some_and(|evd| evd.flags.contains(flag)))
    }

    /// An object is gone.
    pub fn bury(&mut self, handle: impl Into<Handle>) {
        let handle = handle.into();
        self.contexts.remove(&handle);
        self.dead.push(handle.bits());
    }

    /// An IA is gone with everything of it.
    pub fn close(&mut self, ia: IaHandle) {
        macro_rules! drop {
            ($table:ident, $of:expr) => {
                let gone: Vec<_> =
                    self.$table.iter().filter(|(_, value)| $of(value)).map(|(key, _)| *key).collect();
                for handle in gone {
                    self.$table.remove(&handle);
                    self.bury(handle);
                }
            };
        }
        drop!(rmrs, |rmr: &Rmr| rmr.ia == ia);
        drop!(rsps, |rsp: &(IaHandle, u64, EvdHandle, Option<EpHandle>)| rsp.0 == ia);
        drop!(eps, |ep: &Ep| ep.ia == ia);
        drop!(srqs, |srq: &(IaHandle, PzHandle)| srq.0 == ia);
        drop!(lmrs, |lmr: &Lmr| lmr.ia == ia);
        drop!(psps, |psp: &(IaHandle, u64, EvdHandle)| psp.0 == ia);
        drop!(pzs, |of: &IaHandle| *of == ia);
        drop!(evds, |evd: &Evd| evd.ia == ia);
        drop!(cnos, |cno: &(IaHandle, Vec<CnoWaiter<'static>>)| cno.0 == ia);
        drop!(crs, |cr: &(Option<IaHandle>, Option<EpHandle>)| cr.0 == Some(ia));
        // Whether these went with it cannot be known.
        self.crs.retain(|_, cr| cr.0.is_some());
        self.ias.remove(&ia);
        self.bury(ia);
    }
}
