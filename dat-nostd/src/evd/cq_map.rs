//! Which EVD a CQ number belongs to: a hash table whose chains go through the EVDs.

use driver_mlx::{Bar, CqNumber};

use crate::base::handle::EvdHandle;
use crate::base::table::Table;
use crate::evd::Evd;

/// EVDs by the numbers of their CQs. The device gives numbers out in sequence, so that chains are short.
#[derive(Debug)]
pub(crate) struct CqMap<'s> {
    /// First of each chain: slot plus one, 0 for none.
    chains: &'s mut [u32],
}

impl<'s> CqMap<'s> {
    pub(crate) fn new(chains: &'s mut [u32]) -> Self {
        Self { chains }
    }

    fn chain(&mut self, number: CqNumber) -> Option<&mut u32> {
        let count = self.chains.len().max(1);
        self.chains.get_mut(number.get() as usize % count)
    }

    /// The EVD in this slot has a CQ of this number.
    pub(crate) fn insert<B: Bar>(
        &mut self,
        evds: &mut Table<'_, EvdHandle, Evd<B>>,
        number: CqNumber,
        slot: u16,
    ) {
        if let (Some(first), Some(evd)) = (self.chain(number), evds.at_mut(slot)) {
            evd.next_in_chain = core::mem::replace(first, u32::from(slot) + 1);
        }
    }

    /// The EVD in this slot, whose CQ has this number, goes.
    pub(crate) fn remove<B: Bar>(
        &mut self,
        evds: &mut Table<'_, EvdHandle, Evd<B>>,
        number: CqNumber,
        slot: u16,
    ) {
        let place = u32::from(slot) + 1;
        let Some(next) = evds.at(slot).map(|evd| evd.next_in_chain) else { return };
        let Some(first) = self.chain(number) else { return };
        let mut at = *first;
        if at == place {
            *first = next;
            return;
        }
        while let Some(evd) = at.checked_sub(1).and_then(|slot| evds.at_mut(slot as u16)) {
            if evd.next_in_chain == place {
                evd.next_in_chain = next;
                return;
            }
            at = evd.next_in_chain;
        }
    }

    /// The EVD whose CQ has this number.
    pub(crate) fn find<B: Bar>(&self, evds: &Table<'_, EvdHandle, Evd<B>>, number: CqNumber) -> Option<u16> {
        let count = self.chains.len().max(1);
        let mut at = *self.chains.get(number.get() as usize % count)?;
        loop {
            let slot = at.checked_sub(1)? as u16;
            let evd = evds.at(slot)?;
            if evd.cq.as_ref().is_some_and(|cq| cq.number() == number) {
                return Some(slot);
            }
            at = evd.next_in_chain;
        }
    }
}
