//! Guests that make their HCA work as hard as they can while the HCAs of others move data: what all devices together do until the
//! data is there, in steps, at most doubles.

use ib_mgmt::mad::{attr, method};
use ib_mgmt::sa::SaMad;
use mlx5_prm::commands::create_mkey_in;
use mlx5_prm::contexts::{mkc, qpc};
use mlx5_prm::datapath::{EXTENDED_UD_AV, FmCeSe, SendOpcode, av};
use mlx5_prm::opcode::Opcode;
use mlx5_prm::status::CmdStatus;
use mlx5_prm::value::{AccessFlags, AccessMode, QpState, ServiceType};

use super::bed::{Bed, Handle, Options, PD, pattern};
use super::requests::Request;
use crate::object::mkey::{Klm, KlmList, Mkey, Translation};
use crate::profile::Profile;
use crate::tests::guest::{Failed, Guest as Driver, Input};
use rdma_fabric::infiniband::packet::QKEY_GSI;
use rdma_fabric::wire::Unplugged;
use rdma_fabric::work::STEPS_PER_CALL;

/// Bytes that the bystanders move in all, and in one message.
const TOTAL: usize = 16 << 20;
const MESSAGE: usize = 16 << 10;
/// Steps beyond a call's that one operation may take.
const MOST_AT_ONCE: u64 = 1 << 18;

/// Two bystanders on nodes 0 and 1, and the attacker on node 2.
struct Scene {
    bed: Bed,
    sender: Handle,
    local: (u64, u32),
    remote: (u64, u32),
}

impl Scene {
    fn new() -> Self {
        let mut bed = Bed::without_latency(3);
        let (sender, _) = bed.pair_on(0, 1, &Options::default());
        let (local, remote) = (bed.buffer(0, 16 * MESSAGE), bed.buffer(1, 16 * MESSAGE));
        bed.guests[0].write(local.0, &pattern(1, 2, 16 * MESSAGE));
        Self { bed, sender, local, remote }
    }

    fn steps(&mut self, nodes: std::ops::Range<usize>) -> u64 {
        nodes.map(|node| self.bed.hca(node).device.meter.steps()).sum()
    }

    /// Moves the bystanders' data; `attack` is called before every poll. Answers the steps of the bystanders and of the attacker.
    fn run(&mut self, mut attack: impl FnMut(&mut Bed)) -> (u64, u64) {
        let (before, attacker) = (self.steps(0..3), self.steps(2..3));
        let request = |at: usize| {
            let offset = (at % 16 * MESSAGE) as u64;
            Request::new(SendOpcode::RDMA_WRITE, &[(self.local.0 + offset, MESSAGE as u32, self.local.1)])
                .to(self.remote.0 + offset, self.remote.1)
        };
        let (mut posted, mut done) = (0, 0);
        let mut polls = 0;
        while done < TOTAL / MESSAGE {
            while posted < TOTAL / MESSAGE && posted - done < 16 {
                self.bed.send(&mut self.sender, &request(posted));
                posted += 1;
            }
            attack(&mut self.bed);
            let each: Vec<u64> = (0..3).map(|node| self.bed.hca(node).device.meter.steps()).collect();
            self.bed.step();
            for (node, before) in each.into_iter().enumerate() {
                let steps = self.bed.hca(node).device.meter.steps() - before;
                assert!(steps <= STEPS_PER_CALL + MOST_AT_ONCE, "node {node}: {steps} steps in one call");
            }
            while let Some(completion) = self.bed.poll_cq(0, self.sender.cqn) {
                assert_eq!(completion.syndrome, 0, "{completion:?}");
                done += 1;
            }
            polls += 1;
            assert!(polls < 1_000_000, "the data arrives");
        }
        assert_eq!(self.bed.guests[1].read(self.remote.0, 16 * MESSAGE), pattern(1, 2, 16 * MESSAGE));
        let (after, by_attacker) = (self.steps(0..3), self.steps(2..3) - attacker);
        (after - before - by_attacker, by_attacker)
    }

    /// The bystanders are at least half as fast as alone, although the attack was one: it had all the steps that a device is given.
    fn stands(&mut self, what: &str, attack: impl FnMut(&mut Bed)) {
        let (alone, nobody) = self.run(|_| {});
        let (own, attacker) = self.run(attack);
        judge(what, alone, nobody, own, attacker);
    }
}

/// Steps: of the bystanders alone, of an idle device beside them, of the bystanders and of the attacker beside each other.
fn judge(what: &str, alone: u64, nobody: u64, own: u64, attacker: u64) {
    println!("{what}: {alone} steps alone; {own} and {attacker} of the attacker");
    assert!(nobody < alone / 4, "{what}: {nobody} steps of an idle device");
    assert!(attacker > alone / 4, "{what}: {attacker} steps are no attack");
    assert!(own + attacker <= 2 * alone, "{what}: {own} and {attacker} steps where {alone} were enough");
}

fn klm(byte_count: u32, key: u32, address: u64) -> Klm {
    Klm { byte_count, key, address }
}

/// A KLM key in use with rights for everything local.
fn indirect(bed: &mut Bed, node: usize, entries: Vec<Klm>, access: AccessFlags) -> u32 {
    let octowords = entries.len() as u32;
    let list = KlmList::new(entries);
    let key = bed.hca(node).device.objects.mkeys.insert(|index| Mkey {
        key: index << 8 | 0x10,
        pd: PD,
        qpn: None,
        access: access | AccessFlags::LOCAL_READ | AccessFlags::LOCAL_WRITE | AccessFlags::UMR_EN,
        free: false,
        remote_invalidate: true,
        start_addr: 0,
        len: list.bytes(),
        length64: false,
        translation: Translation::Klm(list),
        octowords,
        context: vec![0; 64],
    });
    key.unwrap() << 8 | 0x10
}

/// The most entries of a list.
const LIST: usize = 1 << 16;

/// Keys of lists behind lists, as deep as hardware follows them: most entries are empty, the others one byte.
fn worst_key(bed: &mut Bed, node: usize) -> u32 {
    let (at, lkey) = bed.buffer(node, 0x2000);
    let mut key = lkey;
    let mut base = at;
    for _ in 0..4 {
        let mut entries = vec![klm(0, key, 0); LIST - 4096];
        entries.extend((0..4096).map(|i| klm(1, key, base + i)));
        key = indirect(bed, node, entries, AccessFlags::REMOTE_READ | AccessFlags::REMOTE_WRITE);
        base = 0;
    }
    key
}

/// Keeps a QP full of requests, its completions taken.
fn keep_busy(bed: &mut Bed, qp: &mut Handle, outstanding: &mut u32, request: &Request) {
    while bed.poll_cq(qp.node, qp.cqn).is_some() {
        *outstanding -= 1;
    }
    while *outstanding < 48 {
        bed.post(qp, request);
        *outstanding += 1;
    }
    bed.ring(qp);
}

#[test]
fn lists_of_lists_of_single_bytes() {
    let mut scene = Scene::new();
    let (mut a, _) = scene.bed.pair_on(2, 2, &Options::default());
    let (from, to) = (worst_key(&mut scene.bed, 2), worst_key(&mut scene.bed, 2));
    let request = Request::new(SendOpcode::RDMA_WRITE, &[(0, 4096, from)]).to(0, to);
    let mut outstanding = 0;
    scene.stands("KLM lists", |bed| keep_busy(bed, &mut a, &mut outstanding, &request));
}

#[test]
fn reads_of_scattered_memory() {
    let mut scene = Scene::new();
    let (mut a, _) = scene.bed.pair_on(2, 2, &Options::default());
    let (from, to) = (worst_key(&mut scene.bed, 2), worst_key(&mut scene.bed, 2));
    let request = Request::new(SendOpcode::RDMA_READ, &[(0, 4096, from)]).to(0, to);
    let mut outstanding = 0;
    scene.stands("reads through KLM lists", |bed| keep_busy(bed, &mut a, &mut outstanding, &request));
}

#[test]
fn small_packets_without_end() {
    let mut scene = Scene::new();
    let mut pairs: Vec<(Handle, u32)> =
        (0..8).map(|_| (scene.bed.pair_on(2, 2, &Options::default()).0, 0)).collect();
    let (from, lkey) = scene.bed.buffer(2, 0x1000);
    let (to, rkey) = scene.bed.buffer(2, 0x1000);
    let request = Request::new(SendOpcode::RDMA_WRITE, &[(from, 8, lkey)]).to(to, rkey);
    scene.stands("small packets", |bed| {
        for (qp, outstanding) in &mut pairs {
            keep_busy(bed, qp, outstanding, &request);
        }
    });
}

#[test]
fn tables_of_the_subnet_without_end() {
    let mut scene = Scene::new();
    let bed = &mut scene.bed;
    let mut qp = bed.make_qp(2, ServiceType::QP1, &Options::default());
    bed.set(&qp, qpc::q_key, QKEY_GSI);
    bed.modify(&qp, QpState::RTR);
    bed.modify(&qp, QpState::RTS);
    let mut sa = [0; 48];
    av::qkey.set(&mut sa, QKEY_GSI);
    sa[8..12].copy_from_slice(&(EXTENDED_UD_AV | 1).to_be_bytes());
    av::rlid.set(&mut sa, 1u16);
    // All paths between all ports: nobody takes the answers.
    let mut query = SaMad::request(method::GET_TABLE, attr::PATH_RECORD, 0, 0);
    let (mut tid, mut outstanding) = (0, 0);
    scene.stands("tables of paths", |bed| {
        while bed.poll_cq(2, qp.cqn).is_some() {
            outstanding -= 1;
        }
        while outstanding < 8 {
            tid += 1;
            query.set_tid(tid);
            let mut request = Request::new(SendOpcode::SEND, &[]);
            request.inline = Some(query.to_mad().as_bytes().to_vec());
            bed.post_with_av(&mut qp, &request, Some(sa));
            outstanding += 1;
        }
        bed.ring(&qp);
    });
}

#[test]
fn windows_of_many_entries_that_come_and_go() {
    let mut scene = Scene::new();
    let (mut a, b) = scene.bed.pair_on(2, 2, &Options::default());
    let (_, lkey) = scene.bed.buffer(2, 0x1000);
    let windows: Vec<u32> = (0..32)
        .map(|_| indirect(&mut scene.bed, 2, vec![klm(1, lkey, 0); LIST], AccessFlags::empty()))
        .collect();
    let mut receiver = b.clone();
    let mut turn = 0;
    let mut outstanding = 0;
    scene.stands("invalidations", |bed| {
        while let Some(completion) = bed.poll_cq(2, receiver.cqn) {
            assert_eq!(completion.syndrome, 0);
        }
        while bed.poll_cq(2, a.cqn).is_some() {
            outstanding -= 1;
        }
        while outstanding < 16 {
            let key = windows[turn % windows.len()];
            turn += 1;
            // In use again, behind the device's back, or it could not be invalidated.
            bed.hca(2).device.objects.mkeys.change(key >> 8, |mkey| mkey.free = false).unwrap();
            bed.receive(&mut receiver, &[]);
            bed.post(&mut a, &Request::new(SendOpcode::SEND_INVAL, &[]).immediate(key));
            outstanding += 1;
        }
        bed.ring(&a);
    });
}

#[test]
fn memory_without_end() {
    // Keys that have room for 1024 entries, 48 KB each, until there is no memory, and on.
    let mut scene = Scene::new();
    let mut driver = Driver::up(Profile { memory: 3 << 20, ..Profile::node(2) });
    let mut input = Input::new(Opcode::CREATE_MKEY);
    let context = create_mkey_in::memory_key_mkey_entry.of_mut(&mut input.0);
    mkc::pd.set(context, driver.pd);
    mkc::qpn.set(context, 0xff_ffffu32);
    mkc::umr_en.set(context, 1u8);
    mkc::free.set(context, 1u8);
    mkc::access_mode_1_0.set(context, AccessMode::KLMS.0);
    mkc::translations_octword_size.set(context, 1024u32);
    let rest = driver.page();
    let mut posted: Vec<(u8, [u8; 64])> = Vec::new();
    let (mut steps, mut made, mut refused) = (0, 0, 0);
    let (alone, nobody) = scene.run(|_| {});
    let (own, _) = scene.run(|_| {
        posted.retain(|(slot, entry)| {
            match driver.answer(*slot, entry) {
                Err(Failed::Pending) => return true,
                Err(Failed::Status(status)) => {
                    assert_eq!(status, CmdStatus::NO_RES);
                    refused += 1;
                }
                Err(Failed::Delivery(status)) => panic!("{status}"),
                Ok(_) => made += 1,
            }
            false
        });
        if posted.is_empty() {
            driver.rewind(rest);
            posted.extend((0..16).map(|slot| (slot, driver.post(slot, &input.0, 16))));
        }
        let before = driver.hca.device.meter.steps();
        driver.now += 100;
        driver.hca.poll(driver.now, &driver.memory, &mut driver.vectors, &mut Unplugged);
        steps += driver.hca.device.meter.steps() - before;
    });
    judge("keys of 48 KB", alone, nobody, own, steps);
    let budget = driver.hca.device.budget;
    assert!(budget.most() <= budget.limit());
    assert!(made >= 20 && refused > 100, "{made} keys, {refused} refused");
}

#[test]
fn queues_that_are_flushed_again_and_again() {
    let mut scene = Scene::new();
    let options = Options { log_sq: 12, log_rq: 12, ..Options::default() };
    let mut handles: Vec<Handle> = Vec::new();
    for _ in 0..16 {
        let cqn = scene.bed.make_cq(2, 4);
        scene.bed.hca(2).device.objects.queues.cqs.get_mut(cqn).unwrap().overrun_ignore = true;
        let qp = scene.bed.make_qp_on(2, mlx5_prm::value::ServiceType::RC, &options, cqn);
        scene.bed.modify(&qp, QpState::ERR);
        handles.push(qp);
    }
    let nop = Request::new(SendOpcode::NOP, &[]);
    scene.stands("flushes", |bed| {
        for qp in &mut handles {
            let taken = bed.qp(qp).transport.queue.retired;
            for _ in qp.posted.wrapping_sub(taken)..4000 {
                bed.post(qp, &nop);
            }
            let taken = bed.qp(qp).transport.receive.taken;
            for _ in qp.receives.wrapping_sub(taken)..4000 {
                bed.receive(qp, &[(0, 1, 0)]);
            }
            bed.ring(qp);
        }
    });
}

#[test]
fn events_that_are_held_back() {
    let mut scene = Scene::new();
    let (from, lkey) = scene.bed.buffer(2, 0x1000);
    let (to, rkey) = scene.bed.buffer(2, 0x1000);
    let mut pairs = Vec::new();
    for i in 0..64u64 {
        let (a, _) = scene.bed.pair_on(2, 2, &Options::default());
        let cq = scene.bed.hca(2).device.objects.queues.cqs.get_mut(a.cqn).unwrap();
        cq.moderation.period = 1_000 + 10 * i;
        cq.moderation.from_cqe = true;
        cq.state = Some(mlx5_prm::value::CqState::ARMED);
        pairs.push((a, 0));
    }
    let request =
        Request::new(SendOpcode::RDMA_WRITE, &[(from, 8, lkey)]).to(to, rkey).flags(FmCeSe::CQ_UPDATE);
    scene.stands("moderated events", |bed| {
        for (qp, outstanding) in &mut pairs {
            bed.hca(2).device.objects.queues.cqs.get_mut(qp.cqn).unwrap().state =
                Some(mlx5_prm::value::CqState::ARMED);
            keep_busy(bed, qp, outstanding, &request);
        }
    });
}
