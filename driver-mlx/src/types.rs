//! Numbers of objects and addresses as distinct types, so that a QP number cannot be taken for a CQ number.

use crate::generation::{Age, Generation, Object, Tagged};
use core::fmt;
// Its documentation has relative links, which only the standard library's own pages resolve.
#[doc(no_inline)]
pub use ib_types::Duration;
pub use ib_types::{
    Gid, Guid, Instant, Lid, MacAddress, Mtu, PKey, Psn, QKey, QpNumber, Rate, ServiceLevel, VlanId, Wake,
};

ib_types::number! {
    /// Number of a completion queue, 24 bits.
    CqNumber(u32, 24);
    /// Number of a shared receive queue, 24 bits.
    SrqNumber(u32, 24);
    /// Number of an event queue, 8 bits.
    EqNumber(u8, 8);
    /// Number of a protection domain, 24 bits: what the device calls a [`Pd`].
    PdNumber(u32, 24);
    /// Number of a UAR page: its distance from the start of BAR0 in pages of 4 KiB, 24 bits.
    UarPage(u32, 24);
    /// Key by which a work request names local memory.
    LKey(u32, 32);
    /// Key by which a peer names this side's memory, or this side the peer's.
    RKey(u32, 32);
}

/// A protection domain, from [`Hca::alloc_pd`](crate::Hca::alloc_pd). A copy is a name, not
/// ownership. A recovery ends it: every call but
/// [`Hca::dealloc_pd`](crate::Hca::dealloc_pd) then refuses it as stale. The default is none.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Pd(Tagged);

impl Pd {
    pub(crate) const fn new(number: u32, generation: Generation) -> Self {
        Self(Tagged::new(number, generation))
    }

    /// Returns the device's number of the domain.
    #[must_use]
    pub const fn number(self) -> PdNumber {
        PdNumber::new(self.0.number())
    }
}

/// A set of Q counters, from [`Hca::alloc_q_counters`](crate::Hca::alloc_q_counters). A copy is a
/// name, not ownership. A recovery ends it: every call but
/// [`Hca::dealloc_q_counters`](crate::Hca::dealloc_q_counters) then refuses it as stale.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct CounterSet(Tagged);

impl CounterSet {
    pub(crate) const fn new(number: u8, generation: Generation) -> Self {
        Self(Tagged::new(number as u32, generation))
    }

    /// Returns the device's number of the set, 8 bits.
    #[must_use]
    pub const fn number(self) -> u8 {
        self.0.number() as u8
    }
}

impl Object for Pd {
    type Number = PdNumber;

    fn made(&self, now: Generation) -> Age {
        self.0.made(now)
    }

    fn name(&self) -> PdNumber {
        self.number()
    }
}

impl Object for CounterSet {
    type Number = u8;

    fn made(&self, now: Generation) -> Age {
        self.0.made(now)
    }

    fn name(&self) -> u8 {
        self.number()
    }
}

impl fmt::Debug for Pd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pd({:#x})", self.0.number())
    }
}

impl fmt::Debug for CounterSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CounterSet({:#x})", self.number())
    }
}

#[cfg(feature = "defmt")]
impl defmt::Format for Pd {
    fn format(&self, f: defmt::Formatter<'_>) {
        defmt::write!(f, "Pd({=u32:#x})", self.0.number());
    }
}

#[cfg(feature = "defmt")]
impl defmt::Format for CounterSet {
    fn format(&self, f: defmt::Formatter<'_>) {
        defmt::write!(f, "CounterSet({=u8:#x})", self.number());
    }
}

/// A scatter/gather element (SGE): a range of local memory of a work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[repr(C)]
pub struct Sge {
    /// Address as the memory key counts: virtual or zero-based; a device address under the reserved key.
    pub address: u64,
    /// Key of the memory.
    pub lkey: LKey,
    /// Bytes, below 2^31.
    pub length: u32,
}
