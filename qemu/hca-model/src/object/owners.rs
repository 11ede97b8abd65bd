//! The users in whose name objects were made.

use std::collections::HashMap;

/// The user that may name everything.
pub(crate) const KERNEL: u32 = 0;

/// Kinds of objects that have an owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    Uar,
    Pd,
    TransportDomain,
    Xrcd,
    Eq,
    Cq,
    Qp,
    Srq,
    Mkey,
    Umem,
    Counters,
    General,
    Tis,
    Tir,
    Rqt,
    Sq,
    Rq,
    FlowTable,
    FlowGroup,
    FlowCounter,
}

/// The users of objects that are not the kernel's.
#[derive(Debug, Default)]
pub(crate) struct Owners(HashMap<(Kind, u32), u16>);

impl Owners {
    /// Whose an object is.
    pub(crate) fn of(&self, kind: Kind, number: u32) -> u32 {
        self.0.get(&(kind, number)).copied().map_or(KERNEL, u32::from)
    }

    /// An object is `uid`'s from now on; the kernel's are not noted.
    pub(crate) fn set(&mut self, kind: Kind, number: u32, uid: u32) {
        match u16::try_from(uid) {
            Ok(uid) if uid != 0 => self.0.insert((kind, number), uid),
            _ => self.0.remove(&(kind, number)),
        };
    }

    /// Forgets all.
    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }
}
