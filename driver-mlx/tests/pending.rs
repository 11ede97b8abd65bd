//! Commands that are begun and polled.

use crate::common;

use common::node::{ALL, connected, world};
use common::{Driver, World};
use driver_mlx::{
    Access, Base, Config, Error, MemoryRegion, Pd, Pending, Registration, SendFlags, SendOp, Step,
};
use mlx5_prm::opcode::Opcode;
use rdma_fabric::infiniband::FabricConfig;
use std::rc::Rc;

const SLOW: u64 = 50_000_000;

/// Polls until the command ends.
fn finished<C: driver_mlx::Operation<common::ModelPlatform>>(
    world: &Rc<World>,
    hca: &mut Driver,
    mut pending: Pending<C>,
) -> C::Output {
    loop {
        pending = match hca.poll_pending(pending) {
            Ok(output) => return output,
            Err(pending) => pending,
        };
        world.pass(SLOW / 10);
    }
}

fn begun(hca: &mut Driver, pd: Pd, buffer: &driver_mlx::DmaBuffer) -> Pending<Registration> {
    hca.begin_register(pd, buffer, Access::LOCAL_WRITE, Base::Virtual).expect("begun")
}

#[test]
fn messages_and_commands_go_on_while_registration_is_pending() {
    let world = world(FabricConfig::default());
    let (mut a, mut b) = connected(&world, |_| {});
    let buffer = a.hca.alloc(8192, 4096).expect("memory");
    world.model(0, |model| model.habits_mut().slow_command = Some((Opcode::CREATE_MKEY, SLOW)));
    let pending = begun(&mut a.hca, a.pd, &buffer);
    let pending = a.hca.poll_pending(pending).expect_err("not answered yet");
    let sge = b.sge(0, 64);
    b.qp.post_recv(&[sge], 1).expect("room");
    let sge = a.sge(0, 64);
    let doorbell = a.qp.post_send(SendOp::Send, &[sge], 2, SendFlags::SIGNALED).expect("room");
    a.qp.ring(doorbell);
    a.completion(&world);
    b.completion(&world);
    let other = a.hca.alloc_pd().expect("another command meanwhile");
    let pending = a.hca.poll_pending(pending).expect_err("not answered yet");
    let key: MemoryRegion = finished(&world, &mut a.hca, pending).expect("a key");
    assert_eq!((key.address(), key.length()), (buffer.va() as u64, 8192));
    assert_eq!(a.hca.query_mkey(key.rkey()).map(|state| state.pd), Ok(a.pd.number()));

    world.model(0, |model| model.habits_mut().slow_command = Some((Opcode::DESTROY_MKEY, SLOW)));
    let pending = a.hca.begin_deregister(key).expect("begun");
    let pending = a.hca.poll_pending(pending).expect_err("not answered yet");
    let in_use = a.hca.free(buffer).expect_err("the key may still be there");
    assert_eq!(in_use.error, Error::InUse);
    finished(&world, &mut a.hca, pending).expect("deregistered");
    a.hca.free(in_use.value).expect("no key leads to it");
    a.hca.dealloc_pd(other).expect("ended");
    a.end();
    b.end();
}

#[test]
fn pending_commands_leave_a_slot_to_callers_that_wait() {
    let world = world(FabricConfig::default());
    let mut hca = world.bring_up(0, &Config::DEFAULT).expect("brought up");
    let pd = hca.alloc_pd().expect("a PD");
    let buffer = hca.alloc(4096, 4096).expect("memory");
    world.model(0, |model| model.habits_mut().slow_command = Some((Opcode::CREATE_MKEY, SLOW)));
    let pending = [begun(&mut hca, pd, &buffer), begun(&mut hca, pd, &buffer)];
    let refused = hca.begin_register(pd, &buffer, ALL, Base::Virtual).map(|_| ());
    assert_eq!(refused, Err(Error::NoCommandSlot));
    let waited = hca.register(pd, &buffer, ALL, Base::Virtual).expect("the third slot");
    for pending in pending {
        let key = finished(&world, &mut hca, pending).expect("a key");
        hca.deregister(key).expect("deregistered");
    }
    hca.deregister(waited).expect("deregistered");
    hca.free(buffer).expect("the refused key is not counted");
}

#[test]
fn forgotten_commands_keep_their_buffer_and_give_their_slots_back() {
    let world = world(FabricConfig::default());
    let mut hca = world.bring_up(0, &Config::DEFAULT).expect("brought up");
    let pd = hca.alloc_pd().expect("a PD");
    let buffer = hca.alloc(4096, 4096).expect("memory");
    for _ in 0..4 {
        for _ in 0..2 {
            drop(begun(&mut hca, pd, &buffer));
        }
        world.pass(SLOW);
        let refused = hca.begin_register(pd, &buffer, ALL, Base::Virtual).map(|_| ());
        assert_eq!(refused, Err(Error::NoCommandSlot), "they may be polled still");
        world.pass(61_000_000_000);
    }
    let pending = begun(&mut hca, pd, &buffer);
    let key = finished(&world, &mut hca, pending).expect("a key");
    hca.deregister(key).expect("deregistered");
    let refused = hca.free(buffer).expect_err("eight keys lead to it");
    assert_eq!(refused.error, Error::InUse);
    hca.recover().expect("recovers");
    hca.free(refused.value).expect("no key is left");
}

#[test]
fn a_pending_command_that_is_not_answered_times_out() {
    let world = world(FabricConfig::default());
    let mut hca = world.bring_up(0, &Config::DEFAULT).expect("brought up");
    let pd = hca.alloc_pd().expect("a PD");
    let buffer = hca.alloc(4096, 4096).expect("memory");
    world.model(0, |model| model.misbehaviour_mut().stall_command = Some(Opcode::CREATE_MKEY));
    let pending = begun(&mut hca, pd, &buffer);
    let pending = hca.poll_pending(pending).expect_err("not answered");
    world.pass(61_000_000_000);
    let error = hca.poll_pending(pending).expect("ended").map(|_| ());
    assert!(matches!(error, Err(Error::Timeout { step: Step::Running, .. })), "{error:?}");
    assert_eq!(hca.free(buffer).map_err(|rejected| rejected.error), Err(Error::InUse));
}

#[test]
fn recovery_ends_pending_commands() {
    let world = common::recovery::world();
    let mut hca = common::recovery::up(&world);
    let pd = hca.alloc_pd().expect("a PD");
    let buffer = hca.alloc(4096, 4096).expect("memory");
    let key = hca.register(pd, &buffer, ALL, Base::Virtual).expect("a key");
    world.model(0, |model| {
        model.misbehaviour_mut().stall_command = Some(Opcode::CREATE_MKEY);
    });
    let pending = begun(&mut hca, pd, &buffer);
    let ending = hca.begin_deregister(key).expect("begun");
    world.model(0, |model| model.misbehaviour_mut().stall_command = None);
    hca.recover().expect("recovers");
    assert_eq!(hca.poll_pending(pending).expect("ended").map(|_| ()), Err(Error::Stale));
    hca.poll_pending(ending).expect("ended").expect("there is no key any more");
    hca.free(buffer).expect("no key leads to it");
    common::recovery::works(&world, &mut hca);
}
