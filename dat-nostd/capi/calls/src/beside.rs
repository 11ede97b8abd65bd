//! What is known of objects beside their adapter.

use crate::asides::{Aside, Asides, SocketAddress};
use crate::by_slot::{BySlot, Entry};
use crate::layout::{AgentFunction, Name, Pointer, ProxyAgent};
use dat_nostd::{DatResult, DatReturn, IaAddress, ReturnType, Subtype};

/// What is known of an IA.
#[derive(Clone, Copy)]
pub(crate) struct IaNote {
    /// The name that it was opened by.
    pub(crate) name: Name,
    /// Its asynchronous EVD is said to be elsewhere.
    pub(crate) out_of_scope: bool,
}

/// An agent as the program gave it.
#[derive(Clone, Copy)]
pub(crate) struct Agent {
    pub(crate) function: AgentFunction,
    pub(crate) instance_data: usize,
}

/// Agents of CNOs, by the numbers under which the adapter knows them.
pub(crate) struct Agents<'s> {
    known: &'s mut [Option<(u64, Agent)>],
    last: u64,
}

impl Agents<'_> {
    /// Enters an agent; none without a function.
    ///
    /// # Errors
    /// INSUFFICIENT_RESOURCES: as many as there is room for wait to be called.
    pub(crate) fn enter(&mut self, agent: ProxyAgent) -> DatResult<Option<dat_nostd::ProxyAgent>> {
        let Some(function) = agent.function else { return Ok(None) };
        let full = DatReturn::error(ReturnType::InsufficientResources, Subtype::ResourceMemory);
        let place = self.known.iter_mut().find(|place| place.is_none()).ok_or(full)?;
        self.last += 1;
        *place =
            Some((self.last, Agent { function, instance_data: agent.instance_data.expose_provenance() }));
        // Agents are called outside the lock, and not by the adapter.
        Ok(Some(dat_nostd::ProxyAgent { function: |_, _, _| {}, instance_data: self.last }))
    }

    pub(crate) fn get(&self, agent: &dat_nostd::ProxyAgent) -> Option<Agent> {
        let found = self.known.iter().flatten().find(|(number, _)| *number == agent.instance_data);
        found.map(|(_, agent)| *agent)
    }

    pub(crate) fn take(&mut self, agent: &dat_nostd::ProxyAgent) -> Option<Agent> {
        let is_it = |place: &&mut Option<(u64, Agent)>| {
            place.is_some_and(|(number, _)| number == agent.instance_data)
        };
        self.known.iter_mut().find(is_it)?.take().map(|(_, agent)| agent)
    }
}

/// Room for what lies beside so many objects. The numbers are those of the adapter's tables, `AGENTS` more than its CNOs. All zero bytes, so
/// that a static one takes no room in an image: 272 bytes an IA, an endpoint and a request, 24 a memory region and an agent.
pub struct Storage<
    const IAS: usize,
    const EPS: usize,
    const CRS: usize,
    const LMRS: usize,
    const AGENTS: usize,
> {
    address: SocketAddress,
    ias: [Entry<IaNote>; IAS],
    eps: [Entry<Aside>; EPS],
    crs: [Entry<Aside>; CRS],
    regions: [Entry<[usize; 2]>; LMRS],
    agents: [Option<(u64, Agent)>; AGENTS],
}

/// What lies beside an adapter's objects; from a [`Storage`].
pub struct Beside {
    /// This port's.
    address: &'static SocketAddress,
    pub(crate) ias: BySlot<'static, IaNote>,
    /// What regions were made from, as numbers: nobody reads there.
    pub(crate) regions: BySlot<'static, [usize; 2]>,
    pub(crate) agents: Agents<'static>,
    pub(crate) asides: Asides<'static>,
}

impl<const IAS: usize, const EPS: usize, const CRS: usize, const LMRS: usize, const AGENTS: usize>
    Storage<IAS, EPS, CRS, LMRS, AGENTS>
{
    /// Empty tables.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            address: SocketAddress::NOWHERE,
            ias: [(0, IaNote { name: [0; 256], out_of_scope: false }); IAS],
            eps: [(0, Aside::EMPTY); EPS],
            crs: [(0, Aside::EMPTY); CRS],
            regions: [(0, [0; 2]); LMRS],
            agents: [None; AGENTS],
        }
    }

    /// The tables, handed out, for a port with this address.
    pub fn parts(&'static mut self, address: IaAddress) -> Beside {
        self.address = SocketAddress::new(address);
        Beside {
            address: &self.address,
            ias: BySlot(&mut self.ias),
            regions: BySlot(&mut self.regions),
            agents: Agents { known: &mut self.agents, last: 0 },
            asides: Asides { eps: BySlot(&mut self.eps), crs: BySlot(&mut self.crs) },
        }
    }
}

impl Beside {
    /// This port's address, where a program can read it as long as the device is open.
    pub(crate) fn address(&self) -> Pointer {
        (&raw const *self.address).cast_mut().cast()
    }
}

impl<const I: usize, const E: usize, const C: usize, const L: usize, const A: usize> Default
    for Storage<I, E, C, L, A>
{
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
#[allow(unsafe_code)]
mod tests {
    use super::*;
    use crate::handles::RawHandle;
    use core::ptr;

    unsafe extern "C" fn agent(_: *mut core::ffi::c_void, _: RawHandle) {}

    #[test]
    fn agents_are_called_once() {
        let mut places = [None; 2];
        let mut agents = Agents { known: &mut places, last: 0 };
        let given = ProxyAgent { instance_data: ptr::without_provenance_mut(5), function: Some(agent) };
        let none = ProxyAgent { function: None, ..given };
        assert_eq!(agents.enter(none), Ok(None));
        let first = agents.enter(given).unwrap().unwrap();
        let second = agents.enter(given).unwrap().unwrap();
        assert!(first.instance_data != second.instance_data && agents.enter(given).is_err());
        assert_eq!(agents.take(&first).map(|agent| agent.instance_data), Some(5));
        assert!(agents.take(&first).is_none() && agents.get(&second).is_some());
        assert!(agents.enter(given).is_ok());
    }

    #[test]
    fn entries_are_as_large_as_documented() {
        assert_eq!((size_of::<Entry<IaNote>>(), size_of::<Entry<Aside>>()), (272, 272));
        assert_eq!((size_of::<Entry<[usize; 2]>>(), size_of::<Option<(u64, Agent)>>()), (24, 24));
    }
}
