//! Drivers that make one mistake and drivers that do not, on a card that forgives none: commands,
//! registers and firmware pages.

use super::guest::{Failed, Guest, Input};
use crate::adversary::Adversary;
use crate::profile::Profile;
use crate::seams::GuestMemory;
use mlx5_prm::Field;
use mlx5_prm::commands::*;
use mlx5_prm::contexts::{cqc, qpc};
use mlx5_prm::datapath::{
    CTRL_FM_CE_SE, FmCeSe, SendOpcode, ctrl_opmod_idx_opcode, ctrl_qpn_ds, wqe_data_seg,
};
use mlx5_prm::opcode::Opcode;
use mlx5_prm::status::{CmdStatus, HealthSyndrome};
use mlx5_prm::value::QpState;
use rdma_fabric::wire::Unplugged;

fn profile(adversary: Adversary) -> Profile {
    let mut profile = Profile::node(0);
    profile.habits.adversary = adversary;
    profile
}

/// A CQ on a card that checks arm records, and its doorbell record.
fn armed_cq(guest: &mut Guest) -> (u32, u64) {
    let [events, ring, record] = [guest.page(), guest.page(), guest.page()];
    let eqn = guest.create_eq(events, 4, 0, 0).unwrap();
    (guest.create_cq(ring, 6, record, eqn).unwrap(), record)
}

impl Guest {
    /// Arms a CQ at consumer index `consumer`, with `word` in its doorbell record. Returns whether it is armed.
    fn arm(&mut self, (cqn, record): (u32, u64), consumer: u32, word: u32) -> bool {
        let cq = self.hca.device.objects.queues.cqs.get_mut(cqn).unwrap();
        (cq.producer, cq.consumer, cq.state) = (consumer, consumer, None);
        self.memory.write(record + 4, &word.to_be_bytes()).unwrap();
        self.bar.write(
            self.uar as usize * 4096 + 0x20,
            &(u64::from(consumer) << 32 | u64::from(cqn)).to_be_bytes(),
        );
        self.poll();
        self.hca.device.objects.queues.cqs.get(cqn).unwrap().state.is_some()
    }
}

#[test]
fn arm_doorbell_must_equal_the_record() {
    let mut guest = Guest::up(profile(Adversary { arm_record: true, ..Adversary::default() }));
    let cq = armed_cq(&mut guest);
    assert!(guest.arm(cq, 5, 5));
    assert_eq!(guest.refusal(), "");
    // Another doorbell follows, and will arm the CQ.
    assert!(!guest.arm(cq, 5, 7));
    assert_eq!(guest.refusal(), "");
    // The driver never writes the word.
    assert!(!guest.arm(cq, 5, 0));
    assert!(guest.refusal().contains("cq_doorbell_record.arm"), "{}", guest.refusal());
    let mut forgiving = Guest::up(Profile::node(0));
    let cq = armed_cq(&mut forgiving);
    assert!(forgiving.arm(cq, 5, 0));
}

#[test]
fn vport_contexts_and_rmps_need_an_issi() {
    let commands =
        [Opcode::QUERY_HCA_VPORT_CONTEXT, Opcode::CREATE_RMP, Opcode::CREATE_XRC_SRQ].map(Input::new);
    for (issi, refused) in [(0, true), (1, false)] {
        let mut guest = Guest::new(profile(Adversary { issi: true, ..Adversary::default() }));
        assert_eq!(guest.status(&Input::new(Opcode::ENABLE_HCA)), CmdStatus::OK);
        let set = Input::new(Opcode::SET_ISSI).set(set_issi_in::current_issi, issi);
        assert_eq!(guest.status(&set), CmdStatus::OK);
        for which in [1, 2] {
            let pages = guest.query_pages(which);
            assert_eq!(guest.give(pages as usize), CmdStatus::OK);
        }
        assert_eq!(guest.status(&Input::new(Opcode::INIT_HCA)), CmdStatus::OK);
        for command in &commands {
            assert_eq!(guest.status(command) == CmdStatus::BAD_OP, refused, "{}", guest.refusal());
        }
    }
}

#[test]
fn firmware_pages_belong_to_the_device() {
    let marked = || Guest::up(profile(Adversary { page_marker: true, ..Adversary::default() }));
    let run = |guest: &mut Guest, commands: u32| {
        for _ in 0..commands {
            if guest.command(&Input::new(Opcode::QUERY_ISSI)) == Err(Failed::Pending) {
                break;
            }
        }
        guest.hca.device.health.syndrome
    };
    let page = |guest: &Guest| guest.hca.pages().iter().next().unwrap();
    // Each page is checked several times, and has other content each time.
    let mut guest = marked();
    let (pages, first) = (guest.hca.pages().given(), page(&guest));
    let before = guest.memory.bytes(first, 4096);
    assert_eq!(run(&mut guest, 3 * pages), HealthSyndrome::HEALTHY);
    assert_ne!(guest.memory.bytes(first, 4096), before);
    // The driver uses the memory itself.
    for at in [0, 4095] {
        let mut guest = marked();
        guest.memory.write(page(&guest) + at, &[1]).unwrap();
        assert_eq!(run(&mut guest, pages), HealthSyndrome::FW_INTERNAL_ERR);
    }
    // The same is found when the pages are taken back.
    for (touched, expected) in [(false, HealthSyndrome::HEALTHY), (true, HealthSyndrome::FW_INTERNAL_ERR)] {
        let mut guest = marked();
        assert_eq!(guest.status(&Input::new(Opcode::TEARDOWN_HCA)), CmdStatus::OK);
        if touched {
            // Far from the page that is checked with the next command.
            let last = guest.hca.pages().iter().next_back().unwrap();
            guest.memory.write(last, &[1]).unwrap();
        }
        let take = Input::new(Opcode::MANAGE_PAGES).op_mod(2).set(manage_pages_in::input_num_entries, 1);
        guest.command_len(&take, manage_pages_out::pas.len_with(1)).unwrap();
        guest.poll();
        assert_eq!(guest.hca.device.health.syndrome, expected);
    }
}

#[test]
fn user_memory_outlives_its_rings() {
    let mut guest = Guest::up(profile(Adversary { umem_in_use: true, ..Adversary::default() }));
    let events = guest.page();
    let eqn = guest.create_eq(events, 3, 0, 0).unwrap();
    let pages = guest.pages(2);
    for entry in 0..16 {
        guest.memory.write(pages[0] + entry * 64 + 63, &[0xf0]).unwrap();
    }
    let mut create = Input::new(Opcode::CREATE_UMEM);
    umem::num_of_mtt.set(create_umem_in::umem.of_mut(&mut create.0), 2u64);
    let output = guest.command(&create.pas(&[pages[0] | 3, pages[1] | 3])).unwrap();
    let umem = u64::from(create_umem_out::umem_id.get32(&output));
    let mut create =
        Input::new(Opcode::CREATE_CQ).set(create_cq_in::cq_umem_valid, 1).set(Field::bits(0x58, 31, 0), umem);
    let context = create_cq_in::cq_context.of_mut(&mut create.0);
    cqc::log_cq_size.set(context, 4u8);
    cqc::uar_page.set(context, guest.uar);
    cqc::c_eqn_or_apu_element.set(context, eqn);
    cqc::dbr_addr.set(context, pages[1]);
    let cqn = create_cq_out::cqn.get32(&guest.command(&create).unwrap());
    let destroy_umem = Input::new(Opcode::DESTROY_UMEM).set(destroy_umem_in::umem_id, umem);
    let destroy_cq = Input::new(Opcode::DESTROY_CQ).set(destroy_cq_in::cqn, cqn.into());
    // The order of a driver with the mistake, then the right one.
    assert_eq!(guest.status(&destroy_umem), CmdStatus::BAD_RES_STATE);
    assert_eq!(guest.status(&destroy_cq), CmdStatus::OK);
    assert_eq!(guest.status(&destroy_umem), CmdStatus::OK);
}

#[test]
fn registers_are_silent_in_d3hot() {
    const POWER_STATE: usize = 0x44;
    let mut guest = Guest::up(profile(Adversary { d3hot: true, ..Adversary::default() }));
    guest.hca.config_write(POWER_STATE, &[3]);
    assert_eq!(guest.read32(0x1fc), u32::MAX);
    // The driver goes on as if the device were awake: its doorbell is lost.
    assert_eq!(guest.command(&Input::new(Opcode::QUERY_ISSI)), Err(Failed::Pending));
    assert_eq!(guest.hca.next_deadline(), None, "nothing is due before the driver wakes the device");
    // The driver wakes the device first. Nothing is lost: No_Soft_Reset.
    guest.hca.config_write(POWER_STATE, &[0]);
    guest.write32(0x18, 1);
    guest.poll();
    guest.command(&Input::new(Opcode::QUERY_ISSI)).unwrap();
}

/// Step of posting a NOP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Wqe,
    Record,
    /// The first 8 bytes of the WQE to the doorbell register.
    Doorbell,
    /// All of it to the BlueFlame buffer.
    BlueFlame,
}

/// A QP that sends NOPs, written by hand.
struct Sender {
    guest: Guest,
    qpn: u32,
    cqn: u32,
    ring: u64,
    record: u64,
    posted: u16,
}

impl Sender {
    fn new(adversary: Adversary) -> Self {
        let mut guest = Guest::up(profile(adversary));
        let (cqn, _) = armed_cq(&mut guest);
        let (qpn, [ring, record]) = make_qp(&mut guest, cqn, QpState::RTS);
        Self { guest, qpn, cqn, ring, record, posted: 0 }
    }

    fn wqe(&self, signalled: bool) -> [u8; 64] {
        let mut wqe = [0; 64];
        wqe[..4].copy_from_slice(&ctrl_opmod_idx_opcode(0, self.posted, SendOpcode::NOP).to_be_bytes());
        wqe[4..8].copy_from_slice(&ctrl_qpn_ds(self.qpn, 1).to_be_bytes());
        wqe[CTRL_FM_CE_SE] = if signalled { FmCeSe::CQ_UPDATE.bits() } else { 0 };
        wqe
    }

    /// Posts a NOP in these steps. `signalled` sets the CQE request of the copy in the ring. Returns the number
    /// of completions so far.
    fn post(&mut self, steps: &[Step], signalled: bool) -> u32 {
        let register = self.guest.uar as usize * 4096 + 0x800;
        for step in steps {
            match step {
                Step::Wqe => {
                    let at = self.ring + u64::from(self.posted % 16) * 64;
                    self.guest.memory.write(at, &self.wqe(signalled)).unwrap();
                }
                Step::Record => {
                    let next = u32::from(self.posted) + 1;
                    self.guest.memory.write(self.record + 4, &next.to_be_bytes()).unwrap();
                }
                Step::Doorbell => self.guest.bar.write(register, &self.wqe(true)[..8]),
                Step::BlueFlame => self.guest.bar.write(register, &self.wqe(true)),
            }
            let Guest { hca, memory, vectors, now, .. } = &mut self.guest;
            hca.take_writes(*now, memory, vectors, &mut Unplugged);
        }
        self.posted += 1;
        self.guest.poll();
        self.guest.hca.device.objects.queues.cqs.get(self.cqn).unwrap().producer
    }

    fn state(&self) -> QpState {
        self.guest.hca.device.objects.qps.get(self.qpn).unwrap().state()
    }
}

/// An RC QP with 16 blocks for sends behind 16 receives of 64 bytes, its ring and its record.
fn make_qp(guest: &mut Guest, cqn: u32, state: QpState) -> (u32, [u64; 2]) {
    let [ring, record] = [guest.page(), guest.page()];
    let size = |context: &mut [u8]| {
        qpc::log_sq_size.set(context, 4u8);
        qpc::log_rq_size.set(context, 4u8);
        qpc::log_rq_stride.set(context, 2u8);
        qpc::cqn_rcv.set(context, cqn);
    };
    let qpn = guest.create_qp_with(cqn, record, &[ring], size).unwrap();
    guest.hca.device.objects.qps.get_mut(qpn).unwrap().enter(state);
    (qpn, [ring + 0x400, record])
}

#[test]
fn work_queues_are_read_when_the_doorbell_arrives() {
    let eager = Adversary { eager_fetch: true, ..Adversary::default() };
    let right = [Step::Wqe, Step::Record, Step::Doorbell];
    let mut sender = Sender::new(eager);
    for count in 1..40 {
        assert_eq!(sender.post(&right, true), count);
    }
    assert_eq!(sender.guest.refusal(), "");
    // The record after the doorbell is not seen, and WQE and record in the wrong order break the queue.
    let mut sender = Sender::new(eager);
    assert_eq!(sender.post(&[Step::Wqe, Step::Doorbell, Step::Record], true), 0);
    assert!(sender.guest.refusal().contains("send_counter"), "{}", sender.guest.refusal());
    let mut sender = Sender::new(eager);
    assert_eq!(sender.post(&[Step::Record, Step::Doorbell, Step::Wqe], true), 0);
    assert_eq!(sender.state(), QpState::ERR);
    let mut forgiving = Sender::new(Adversary::default());
    assert_eq!(forgiving.post(&[Step::Wqe, Step::Doorbell, Step::Record], true), 1);
    assert_eq!(forgiving.post(&[Step::Record, Step::Doorbell, Step::Wqe], true), 2);
}

#[test]
fn blueflame_buffer_counts_where_it_is_the_next_wqe() {
    let pushes = Adversary { blueflame: true, ..Adversary::default() };
    let right = [Step::Wqe, Step::Record, Step::BlueFlame];
    let mut sender = Sender::new(pushes);
    for count in 1..40 {
        assert_eq!(sender.post(&right, true), count);
    }
    // Linux finds out whether writes are combined by a copy that differs.
    assert_eq!(sender.post(&right, false), 40);
    assert_eq!(Sender::new(Adversary::default()).post(&right, false), 0);
    // A driver that forgets the record goes well until the queue is read.
    let mut sender = Sender::new(pushes);
    assert_eq!(sender.post(&[Step::Wqe, Step::BlueFlame], true), 1);
    assert_eq!(sender.post(&[Step::Wqe, Step::Doorbell], true), 1);
    assert_eq!(sender.state(), QpState::ERR);
    let mut forgiving = Sender::new(Adversary::default());
    assert_eq!(forgiving.post(&[Step::Wqe, Step::BlueFlame], true), 0);
    assert_eq!(forgiving.state(), QpState::RTS);
}

/// Has the device carry out `destroy`, a command about a queue that has `page`. A driver uses the page for
/// something else as soon as it has given the command, or after the answer. Returns whether its data stays.
fn reuse(guest: &mut Guest, destroy: &Input, page: u64, early: bool) -> bool {
    let own = [0x11; 4096];
    let posted = guest.post(0, &destroy.0, 16);
    if early {
        guest.memory.write(page, &own).unwrap();
    }
    guest.poll();
    guest.answer(0, &posted).unwrap();
    if !early {
        guest.memory.write(page, &own).unwrap();
    }
    guest.poll();
    guest.memory.bytes(page, 4096) == own
}

#[test]
fn memory_of_a_queue_is_the_device_s_until_the_answer() {
    for (late_dma, early, stays) in [(true, false, true), (true, true, false), (false, true, true)] {
        let mut guest = Guest::up(profile(Adversary { late_dma, ..Adversary::default() }));
        let [events, ring, record] = [guest.page(), guest.page(), guest.page()];
        let eqn = guest.create_eq(events, 4, 0, 0).unwrap();
        let cqn = guest.create_cq(ring, 4, record, eqn).unwrap();
        let index = create_mkey_out::mkey_index.get32(&guest.create_mkey().unwrap());
        let buffer = guest.page();
        for (opcode, field) in [(Opcode::DESTROY_QP, destroy_qp_in::qpn), (Opcode::QP_2RST, qp_2rst_in::qpn)]
        {
            let (qpn, [sends, record]) = make_qp(&mut guest, cqn, QpState::RTR);
            let mut receive = [0; 16];
            wqe_data_seg::byte_count.set(&mut receive, 4096u32);
            wqe_data_seg::lkey.set(&mut receive, index << 8);
            wqe_data_seg::addr.set(&mut receive, buffer);
            guest.memory.write(sends - 0x400, &receive).unwrap();
            guest.memory.write(record, &1u32.to_be_bytes()).unwrap();
            let destroy = Input::new(opcode).set(field, qpn.into());
            assert_eq!(reuse(&mut guest, &destroy, buffer, early), stays, "{opcode}");
            if opcode == Opcode::QP_2RST {
                let destroy = Input::new(Opcode::DESTROY_QP).set(destroy_qp_in::qpn, qpn.into());
                assert_eq!(guest.status(&destroy), CmdStatus::OK);
            }
        }
        let destroy = Input::new(Opcode::DESTROY_CQ).set(destroy_cq_in::cqn, cqn.into());
        assert_eq!(reuse(&mut guest, &destroy, ring, early), stays);
        let destroy = Input::new(Opcode::DESTROY_EQ).set(destroy_eq_in::eq_number, eqn.into());
        assert_eq!(reuse(&mut guest, &destroy, events, early), stays);
    }
}
