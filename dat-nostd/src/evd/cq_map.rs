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

    /// Index of the chain for a number.
    fn chain(&self, number: CqNumber) -> usize {
        number.get() as usize % self.chains.len().max(1)
    }

    /// Adds the EVD in this slot, if it has a CQ.
    pub(crate) fn insert<B: Bar>(&mut self, evds: &mut Table<'_, EvdHandle, Evd<B>>, slot: u16) {
        let Some((evd, number)) = numbered(evds, slot) else { return };
        let chain = self.chain(number);
        if let Some(first) = self.chains.get_mut(chain) {
            evd.next_in_chain = core::mem::replace(first, u32::from(slot) + 1);
        }
    }

    /// Removes the EVD in this slot, which is about to go.
    pub(crate) fn remove<B: Bar>(&mut self, evds: &mut Table<'_, EvdHandle, Evd<B>>, slot: u16) {
        let Some((evd, number)) = numbered(evds, slot) else { return };
        let (place, next, chain) = (u32::from(slot) + 1, evd.next_in_chain, self.chain(number));
        let mut link = self.chains.get_mut(chain);
        while let Some(at) = link {
            if *at == place {
                *at = next;
                return;
            }
            let slot = at.checked_sub(1);
            link = slot.and_then(|slot| evds.at_mut(slot as u16)).map(|evd| &mut evd.next_in_chain);
        }
    }

    /// The EVD whose CQ has this number.
    pub(crate) fn find<B: Bar>(&self, evds: &Table<'_, EvdHandle, Evd<B>>, number: CqNumber) -> Option<u16> {
        let mut at = *self.chains.get(self.chain(number))?;
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

/// The EVD in this slot, with the number of its CQ.
fn numbered<'t, B: Bar>(
    evds: &'t mut Table<'_, EvdHandle, Evd<B>>,
    slot: u16,
) -> Option<(&'t mut Evd<B>, CqNumber)> {
    let evd = evds.at_mut(slot)?;
    let number = evd.cq()?.number();
    Some((evd, number))
}
