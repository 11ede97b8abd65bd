//! Who may use which memory, and until when: buffers, keys, foreign memory, and the end of an HCA.

use crate::common;

use common::node::{ALL, connected, world};
use common::{BLOCKS, Driver, ModelPlatform, REGION, World, host_region};
use driver_mlx::{
    Access, Base, Config, DmaRegion, DmaSlice, Error, Hca, HcaStorage, Instant, MapError, Platform, Rejected,
    SendFlags, SendOp,
};
use hca_model::device::Life;
use mlx5_prm::opcode::Opcode;
use rdma_fabric::infiniband::FabricConfig;
use std::cell::RefCell;
use std::rc::Rc;

fn error<T>(result: Result<(), Rejected<T>>) -> (Error, T) {
    match result {
        Ok(()) => panic!("it was taken"),
        Err(Rejected { error, value }) => (error, value),
    }
}

#[test]
fn a_buffer_is_freed_when_no_key_leads_to_it() {
    let world = world(FabricConfig::default());
    let mut hca = world.bring_up(0, &Config::DEFAULT).expect("brought up");
    let free = hca.free_bytes();
    let pd = hca.alloc_pd().expect("a PD");
    let buffer = hca.alloc(10_000, 4096).expect("memory");
    let whole = hca.register(pd, &buffer, Access::LOCAL_WRITE, Base::Virtual).expect("a key");
    // A range that begins in the middle of the buffer is the buffer's, too.
    let range = buffer.slice(5000, 100).expect("inside");
    let part = hca.register(pd, range, Access::empty(), Base::Zero).expect("a key");
    let again = hca.register_again(pd, &part, Access::empty(), Base::Virtual).expect("a key");
    assert_eq!((again.address(), again.length()), (buffer.va() as u64 + 5000, 100));
    let (why, buffer) = error(hca.free(buffer));
    assert_eq!(why, Error::InUse);
    hca.deregister(whole).expect("deregistered");
    hca.deregister(part).expect("deregistered");
    let (why, buffer) = error(hca.free(buffer));
    assert_eq!(why, Error::InUse, "one key is left");
    hca.deregister(again).expect("deregistered");
    hca.free(buffer).expect("no key is left");
    assert_eq!(hca.free_bytes(), free);
    // A registration that is refused does not count.
    let buffer = hca.alloc(4096, 4096).expect("memory");
    assert!(hca.register(pd, &buffer, Access::REMOTE_WRITE, Base::Virtual).is_err());
    assert!(hca.register(pd, buffer.slice(8, 0).expect("inside"), ALL, Base::Virtual).is_err());
    hca.free(buffer).expect("no key leads there");
}

#[test]
fn a_key_that_firmware_keeps_keeps_the_buffer() {
    let world = world(FabricConfig::default());
    let mut hca = world.bring_up(0, &Config::DEFAULT).expect("brought up");
    let pd = hca.alloc_pd().expect("a PD");
    let buffer = hca.alloc(4096, 4096).expect("memory");
    let key = hca.register(pd, &buffer, ALL, Base::Virtual).expect("a key");
    world.model(0, |model| model.misbehaviour_mut().stall_command = Some(Opcode::DESTROY_MKEY));
    // The device does not answer for the key, so nobody knows that it is gone.
    let (_, key) = error(hca.deregister(key));
    let (why, _) = error(hca.free(buffer));
    assert_eq!(why, Error::InUse);
    assert!(key.length() == 4096);
}

#[test]
fn what_belongs_to_another_hca_is_refused() {
    let world = world(FabricConfig::default());
    let mut hcas = [0, 1].map(|node| world.bring_up(node, &Config::DEFAULT).expect("brought up"));
    let [a, b] = &mut hcas;
    let (pd, other_pd) = (a.alloc_pd().expect("a PD"), b.alloc_pd().expect("a PD"));
    let buffer = a.alloc(4096, 4096).expect("memory");
    let key = a.register(pd, &buffer, ALL, Base::Virtual).expect("a key");
    assert_eq!(b.register(other_pd, &buffer, ALL, Base::Virtual).err(), Some(Error::NotAllocated));
    assert_eq!(b.register_again(other_pd, &key, ALL, Base::Virtual).err(), Some(Error::NotAllocated));
    let (why, key) = error(b.deregister(key));
    assert_eq!(why, Error::NotAllocated);
    let (why, buffer) = error(b.free(buffer));
    assert_eq!(why, Error::NotAllocated);
    a.deregister(key).expect("its own");
    a.free(buffer).expect("its own");
}

/// A view that somebody made with `unsafe` of the region itself: still no key for what is no buffer.
#[test]
fn rings_and_firmware_pages_cannot_be_registered() {
    let world = world(FabricConfig::default());
    let mut hca = world.bring_up(0, &Config::DEFAULT).expect("brought up");
    let pd = hca.alloc_pd().expect("a PD");
    let buffer = hca.alloc(8192, 4096).expect("memory");
    let all = world.memory(0);
    let at = buffer.va() - all.va();
    let mut registered = Vec::new();
    for page in 0..REGION / 4096 {
        let page = all.slice(page * 4096, 4096).expect("inside");
        match hca.register(pd, page, ALL, Base::Virtual) {
            Ok(key) => {
                registered.push(page.va());
                hca.deregister(key).expect("deregistered");
            }
            Err(error) => assert_eq!(error, Error::NotAllocated),
        }
    }
    assert_eq!(registered, [buffer.va(), buffer.va() + 4096]);
    let beyond = all.slice(at, 8193).expect("inside");
    assert_eq!(hca.register(pd, beyond, ALL, Base::Virtual).err(), Some(Error::NotAllocated));
}

/// A platform that lends the device a page of the process, at the end of the region's addresses.
#[derive(Clone)]
struct Mapping {
    inner: ModelPlatform,
    mapped: Rc<RefCell<Vec<(usize, usize, bool)>>>,
}

impl Mapping {
    /// Device address of the region's last page.
    fn page(&self) -> u64 {
        self.inner.world().memory(0).as_slice().device_address() + REGION as u64 - 4096
    }
}

impl Platform for Mapping {
    type Bar = <ModelPlatform as Platform>::Bar;

    fn bar(&self) -> Self::Bar {
        self.inner.bar()
    }
    fn uar_write_combining(&self, _: usize, _: usize) -> Option<Self::Bar> {
        None
    }
    fn now(&self) -> Instant {
        self.inner.now()
    }
    fn idle(&self, deadline: Instant) {
        self.inner.idle(deadline);
    }
    unsafe fn map(&self, va: usize, len: usize, writable: bool) -> Result<u64, MapError> {
        if len > 4096 {
            return Err(MapError::NoSpace);
        }
        self.mapped.borrow_mut().push((va, len, writable));
        Ok(self.page() + va as u64 % 4096)
    }
    unsafe fn unmap(&self, device_address: u64, len: usize) {
        assert!(device_address >= self.page());
        let at = self
            .mapped
            .borrow()
            .iter()
            .position(|&(va, l, _)| l == len && va as u64 % 4096 == device_address % 4096);
        self.mapped.borrow_mut().remove(at.expect("mapped before"));
    }
}

#[test]
fn foreign_memory_is_mapped_as_long_as_a_key_leads_to_it() {
    let world = world(FabricConfig::default());
    let mapped = Rc::new(RefCell::new(Vec::new()));
    let platform = Mapping { inner: world.platform(0), mapped: Rc::clone(&mapped) };
    let memory = world.memory(0);
    // SAFETY: as for the world's own region, less the page that stands for foreign memory.
    let region = unsafe {
        DmaRegion::new(
            std::ptr::with_exposed_provenance_mut(memory.va()),
            memory.device_address(),
            REGION - 4096,
        )
    };
    let storage = Box::leak(Box::new(HcaStorage::<BLOCKS>::new()));
    let mut hca =
        Hca::bring_up(platform, region.expect("aligned"), host_region(), storage.parts(), &Config::DEFAULT)
            .expect("brought up");
    let pd = hca.alloc_pd().expect("a PD");
    let va: *mut u8 = std::ptr::with_exposed_provenance_mut(memory.va() + REGION - 4096 + 8);
    // SAFETY: the page is mapped, leaked, and accessed by nobody else.
    let key = unsafe { hca.register_foreign(pd, va, 100, ALL, Base::Virtual) }.expect("a key");
    assert_eq!((key.address(), key.length()), (va.addr() as u64, 100));
    assert_eq!(*mapped.borrow(), [(va.addr(), 100, true)]);
    let again = hca.register_again(pd, &key, Access::empty(), Base::Zero).expect("a key");
    assert_eq!(again.address(), 8);
    // Each key has a mapping of its own, with the rights that it needs.
    assert_eq!(*mapped.borrow(), [(va.addr(), 100, true), (va.addr(), 100, false)]);
    hca.deregister(key).expect("deregistered");
    assert_eq!(mapped.borrow().len(), 1, "the other key still needs it");
    hca.deregister(again).expect("deregistered");
    assert!(mapped.borrow().is_empty());
    // The same by a view of it, and of a part.
    // SAFETY: as above.
    let view = unsafe { DmaSlice::foreign(va, 100) };
    let key = hca.register(pd, view.slice(20, 50).expect("inside"), ALL, Base::Zero).expect("a key");
    assert_eq!((key.address(), key.length()), (28, 50));
    assert_eq!(*mapped.borrow(), [(va.addr() + 20, 50, true)]);
    hca.deregister(key).expect("deregistered");
    assert!(hca.register(pd, view.slice(100, 0).expect("inside"), ALL, Base::Zero).is_err());
    assert!(mapped.borrow().is_empty());
    // What fails leaves nothing mapped.
    // SAFETY: as above; no key is made.
    let refused = unsafe {
        [
            hca.register_foreign(pd, va, 0, ALL, Base::Virtual).err(),
            hca.register_foreign(pd, va, 100, Access::REMOTE_WRITE, Base::Virtual).err(),
            hca.register_foreign(pd, va, 5000, ALL, Base::Virtual).err(),
        ]
    };
    assert!(refused.iter().all(Option::is_some), "{refused:?}");
    assert_eq!(refused[2], Some(Error::Map(MapError::NoSpace)));
    assert!(mapped.borrow().is_empty());
    hca.dealloc_pd(pd).expect("ended");
    hca.tear_down().expect("torn down");
}

/// Everything in the node's region, to see whether the device still writes there.
fn bytes(world: &Rc<World>, node: usize) -> Vec<u8> {
    let mut all = vec![0; REGION];
    world.memory(node).read(0, &mut all).expect("inside");
    all
}

#[test]
fn the_device_of_a_dropped_hca_does_no_dma_and_starts_again() {
    let world = world(FabricConfig::default());
    let (mut a, b) = connected(&world, |_| ());
    let (raddr, rkey) = b.remote(0);
    a.put(0, &[0xab; 4096]);
    let sge = a.sge(0, 4096);
    let doorbell =
        a.qp.post_send(SendOp::Write { raddr, rkey }, &[sge], 1, SendFlags::SIGNALED).expect("room");
    a.qp.ring(doorbell);
    drop(b.hca);
    let stopped = bytes(&world, 1);
    world.pass(1_000_000_000);
    for message in 0..8 {
        let sent = a.qp.post_send(SendOp::Write { raddr, rkey }, &[sge], message, SendFlags::SIGNALED);
        a.qp.ring(sent.expect("room"));
    }
    world.pass(30_000_000_000);
    assert!(bytes(&world, 1) == stopped, "the device of a dropped HCA wrote to memory");
    let model = world.model(1, |model| (model.life(), model.census().total(), model.pages().given()));
    assert_eq!(model, (Life::Disabled, 0, 0));
    let hca: Driver = world.bring_up(1, &Config::DEFAULT).expect("it starts from a disabled interface");
    hca.tear_down().expect("torn down");
}

#[test]
fn a_device_without_fast_teardown_is_closed_by_force() {
    let mut profile = hca_model::Profile::node(0);
    // cmd_hca_cap.fast_teardown: dword 0x1c, bit 4.
    profile.misbehaviour.hidden_capabilities = vec![(0x1c, 1 << 4)];
    let world = World::new([profile], FabricConfig::default());
    let mut hca = world.bring_up(0, &Config::DEFAULT).expect("brought up");
    assert!(!hca.caps().fast_teardown);
    let _pd = hca.alloc_pd().expect("a PD");
    drop(hca);
    assert_eq!(world.model(0, |model| (model.life(), model.census().total())), (Life::Disabled, 0));
    world.bring_up(0, &Config::DEFAULT).expect("again").tear_down().expect("torn down");
}

#[test]
fn a_device_that_does_not_answer_is_dropped_within_the_limits() {
    let mut profile = hca_model::Profile::node(0);
    profile.misbehaviour.stall_command = Some(mlx5_prm::opcode::Opcode::TEARDOWN_HCA);
    let world = World::new([profile], FabricConfig::default());
    let hca = world.bring_up(0, &Config::DEFAULT).expect("brought up");
    let began = world.now();
    drop(hca);
    let took = world.now() - began;
    assert!(took <= 3 * 3_100_000_000, "two commands and the register: {took} ns");
    assert_eq!(world.model(0, |model| model.life()), Life::Disabled, "disabling the interface is enough");
}

#[test]
fn a_function_that_was_reset_meanwhile_is_left_alone() {
    let world = world(FabricConfig::default());
    let hca = world.bring_up(0, &Config::DEFAULT).expect("brought up");
    world.model(0, |model| {
        model.reset();
        model.config_write(4, &[0x06, 0x04]);
    });
    let began = world.now();
    drop(hca);
    assert_eq!(world.now(), began, "nothing to wait for");
    assert_eq!(world.complaints(0), [""; 0]);
}

#[test]
fn an_orderly_end_leaves_nothing_to_drop() {
    let world = world(FabricConfig::default());
    let hca = world.bring_up(0, &Config::DEFAULT).expect("brought up");
    hca.tear_down().expect("torn down");
    assert_eq!(world.complaints(0), [""; 0]);
    // A device with objects left refuses the orderly way in part; then it is stopped the quick way.
    let mut hca = world.bring_up(1, &Config::DEFAULT).expect("brought up");
    let _pd = hca.alloc_pd().expect("a PD");
    let _ = hca.tear_down();
    assert_eq!(world.model(1, |model| (model.life(), model.census().total())), (Life::Disabled, 0));
}

/// The size of a region may be set at run time.
#[test]
fn block_tables_are_as_long_as_the_region_needs() {
    let world = world(FabricConfig::default());
    let attempt = |map: usize, users: usize| {
        let storage = Box::leak(Box::new(HcaStorage::<1>::new()));
        // Bring-up overwrites their content.
        let parts = storage.parts().with_block_tables(vec![[7; 2]; map].leak(), vec![7; users].leak());
        let up = Hca::bring_up(world.platform(0), world.region(0), host_region(), parts, &Config::DEFAULT);
        up.and_then(Hca::tear_down)
    };
    let needed = BLOCKS;
    for (map, users, available) in
        [(BLOCKS / 2, BLOCKS, BLOCKS / 2), (BLOCKS, BLOCKS - 1, BLOCKS - 1), (1, 1, 1)]
    {
        assert_eq!(attempt(map, users), Err(Error::StorageTooSmall { needed, available }));
    }
    assert_eq!(attempt(BLOCKS, BLOCKS), Ok(()));
}
