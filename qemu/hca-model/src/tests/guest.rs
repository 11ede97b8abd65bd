//! A guest: memory, interrupts, and the least of a driver.

use crate::bar::BarPort;
use crate::device::Device;
use crate::hca::Hca;
use crate::object::cq::CqError;
use crate::profile::Profile;
use crate::seams::{DmaFault, GuestMemory, Interrupts, Io, NoPeers};
use mlx5_prm::cmd::{self, cmd_if_box, cmd_out, cmd_queue_entry};
use mlx5_prm::commands::*;
use mlx5_prm::contexts::{cqc, eqc, mkc, qpc};
use mlx5_prm::opcode::Opcode;
use mlx5_prm::status::{CmdStatus, DeliveryStatus};
use mlx5_prm::value::{RqType, ServiceType};
use rdma_fabric::wire::Unplugged;
use std::cell::RefCell;
use std::sync::Arc;

/// Guest memory from [`Memory::BASE`] on.
pub struct Memory(RefCell<Vec<u8>>);

impl Memory {
    pub const BASE: u64 = 0x4000_0000;
    const SIZE: usize = 16 << 20;

    fn range(address: u64, len: usize) -> Result<std::ops::Range<usize>, DmaFault> {
        let fault = DmaFault { address, len };
        let at = usize::try_from(address.checked_sub(Self::BASE).ok_or(fault)?).map_err(|_| fault)?;
        let end = at.checked_add(len).filter(|&end| end <= Self::SIZE).ok_or(fault)?;
        Ok(at..end)
    }

    pub fn bytes(&self, address: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.read(address, &mut bytes).unwrap();
        bytes
    }
}

impl GuestMemory for Memory {
    fn read(&self, address: u64, buf: &mut [u8]) -> Result<(), DmaFault> {
        buf.copy_from_slice(&self.0.borrow()[Self::range(address, buf.len())?]);
        Ok(())
    }
    fn write(&self, address: u64, data: &[u8]) -> Result<(), DmaFault> {
        self.0.borrow_mut()[Self::range(address, data.len())?].copy_from_slice(data);
        Ok(())
    }
    fn load32(&self, address: u64) -> Result<u32, DmaFault> {
        let mut bytes = [0; 4];
        self.read(address, &mut bytes).map(|()| u32::from_be_bytes(bytes))
    }
    fn load64(&self, address: u64) -> Result<u64, DmaFault> {
        let mut bytes = [0; 8];
        self.read(address, &mut bytes).map(|()| u64::from_be_bytes(bytes))
    }
    fn store32(&self, address: u64, value: u32) -> Result<(), DmaFault> {
        self.write(address, &value.to_be_bytes())
    }
    fn store64(&self, address: u64, value: u64) -> Result<(), DmaFault> {
        self.write(address, &value.to_be_bytes())
    }
}

#[derive(Default)]
pub struct Vectors(pub Vec<u16>);

impl Interrupts for Vectors {
    fn raise(&mut self, vector: u16) {
        self.0.push(vector);
    }
}

/// An input under construction.
#[derive(Clone)]
pub struct Input(pub Vec<u8>);

impl Input {
    pub fn new(opcode: Opcode) -> Self {
        let layout = opcode.input_layout().unwrap();
        let mut bytes = vec![0; layout.size];
        bytes[..2].copy_from_slice(&opcode.0.to_be_bytes());
        Self(bytes)
    }
    pub fn op_mod(mut self, op_mod: u16) -> Self {
        self.0[6..8].copy_from_slice(&op_mod.to_be_bytes());
        self
    }
    pub fn set(mut self, field: mlx5_prm::Field, value: u64) -> Self {
        field.set(&mut self.0, value);
        self
    }
    pub fn pas(mut self, pages: &[u64]) -> Self {
        for page in pages {
            self.0.extend_from_slice(&page.to_be_bytes());
        }
        self
    }
}

/// What a command came back with.
#[derive(Debug, PartialEq, Eq)]
pub enum Failed {
    Delivery(DeliveryStatus),
    Status(CmdStatus),
    /// Still the device's after a while.
    Pending,
}

pub type Answer = Result<Vec<u8>, Failed>;

pub struct Guest {
    pub hca: Hca,
    pub bar: Arc<BarPort>,
    pub memory: Memory,
    pub vectors: Vectors,
    pub now: u64,
    next: u64,
    pub cmdq: u64,
    token: u8,
    pub uar: u32,
    pub pd: u32,
}

impl Guest {
    /// A device at power-on behind an enabled PCI function, its registers ready and its command queue given.
    pub fn new(profile: Profile) -> Self {
        let hca = Hca::new(profile);
        let mut guest = Self {
            bar: hca.bar(),
            hca,
            memory: Memory(RefCell::new(vec![0; Memory::SIZE])),
            vectors: Vectors::default(),
            now: 0,
            next: Memory::BASE,
            cmdq: 0,
            token: 0,
            uar: 0,
            pd: 0,
        };
        guest.cmdq = guest.page();
        guest.attach();
        guest
    }

    /// Enables the function, waits for the device and gives it the command queue.
    pub fn attach(&mut self) {
        self.hca.config_write(4, &[0x06, 0x04]);
        for _ in 0..10 {
            self.poll();
            if self.read32(0x1fc) >> 31 == 0 {
                break;
            }
            self.now += 1_000_000;
        }
        assert_eq!(self.read32(0x1fc) >> 31, 0, "initializing");
        assert_eq!(self.read32(4) >> 16, 5, "command interface revision");
        self.write32(0x10, (self.cmdq >> 32) as u32);
        self.write32(0x14, self.cmdq as u32);
        self.poll();
    }

    pub fn poll(&mut self) {
        self.now += 1000;
        while self.hca.poll(self.now, &self.memory, &mut self.vectors, &mut Unplugged) {}
    }

    pub fn read32(&self, offset: usize) -> u32 {
        let mut bytes = [0; 4];
        self.bar.read(offset, &mut bytes);
        u32::from_be_bytes(bytes)
    }

    pub fn write32(&self, offset: usize, value: u32) {
        self.bar.write(offset, &value.to_be_bytes());
    }

    /// A fresh zeroed page.
    pub fn page(&mut self) -> u64 {
        self.pages(1)[0]
    }

    /// Forgets the pages handed out from `address` on.
    pub fn rewind(&mut self, address: u64) {
        self.memory.write(address, &vec![0; (self.next - address) as usize]).unwrap();
        self.next = address;
    }

    pub fn pages(&mut self, count: usize) -> Vec<u64> {
        let first = self.next;
        self.next += 4096 * count as u64;
        (0..count as u64).map(|i| first + i * 4096).collect()
    }

    /// Writes entry `slot` with its mailbox chains and rings it.
    pub fn post(&mut self, slot: u8, input: &[u8], output_len: usize) -> [u8; 64] {
        self.token = self.token % 255 + 1;
        let mut entry = [0u8; 64];
        cmd_queue_entry::r#type.set(&mut entry, cmd::TYPE_PCI_CMD_XPORT);
        cmd_queue_entry::input_length.set(&mut entry, input.len() as u32);
        cmd_queue_entry::output_length.set(&mut entry, output_len as u32);
        cmd_queue_entry::token.set(&mut entry, self.token);
        let mut head = input[..input.len().min(16)].to_vec();
        head.resize(16, 0);
        cmd_queue_entry::command_input_inline_data.of_mut(&mut entry).copy_from_slice(&head);
        let data = input.get(16..).unwrap_or(&[]);
        let input_chain = self.chain(cmd::blocks(input.len()), data);
        let output_chain = self.chain(cmd::blocks(output_len), &[]);
        cmd_queue_entry::input_mailbox_pointer_63_32.set(&mut entry, (input_chain >> 32) as u32);
        cmd_queue_entry::input_mailbox_pointer_31_9.set(&mut entry, (input_chain as u32) >> 9);
        cmd_queue_entry::output_mailbox_pointer_63_32.set(&mut entry, (output_chain >> 32) as u32);
        cmd_queue_entry::output_mailbox_pointer_31_9.set(&mut entry, (output_chain as u32) >> 9);
        cmd_queue_entry::ownership.set(&mut entry, 1u8);
        let signature = cmd::entry_signature(&entry);
        cmd_queue_entry::signature.set(&mut entry, signature);
        self.memory.write(self.cmdq + 64 * u64::from(slot), &entry).unwrap();
        self.write32(0x18, 1 << slot);
        entry
    }

    fn chain(&mut self, blocks: usize, data: &[u8]) -> u64 {
        // Block by block in 1 KiB units, as Linux lays them out.
        let pages = self.pages(blocks.div_ceil(4));
        let first = pages.first().copied().unwrap_or(0);
        for number in 0..blocks {
            let mut block = [0u8; 576];
            let piece = data.get(number * 512..).unwrap_or(&[]);
            let piece = &piece[..piece.len().min(512)];
            block[..piece.len()].copy_from_slice(piece);
            if number + 1 < blocks {
                let next = first + 1024 * (number as u64 + 1);
                cmd_if_box::next_pointer_63_32.set(&mut block, (next >> 32) as u32);
                cmd_if_box::next_pointer_31_10.set(&mut block, (next as u32) >> 10);
            }
            cmd_if_box::block_number.set(&mut block, number as u32);
            cmd_if_box::token.set(&mut block, self.token);
            let (ctrl, all) = cmd::block_signatures(&block);
            cmd_if_box::ctrl_signature.set(&mut block, ctrl);
            cmd_if_box::signature.set(&mut block, all);
            self.memory.write(first + 1024 * number as u64, &block).unwrap();
        }
        first
    }

    /// What entry `slot` holds now.
    pub fn answer(&self, slot: u8, posted: &[u8; 64]) -> Answer {
        let entry: [u8; 64] = self.memory.bytes(self.cmdq + 64 * u64::from(slot), 64).try_into().unwrap();
        let (owned, status) = cmd::status_own(entry[0x3f]);
        if owned {
            return Err(Failed::Pending);
        }
        assert_eq!(entry[..0x20], posted[..0x20], "the device leaves the input alone");
        assert_eq!(entry[0x30..0x3d], posted[0x30..0x3d]);
        if status != DeliveryStatus::OK {
            return Err(Failed::Delivery(status));
        }
        let len = cmd_queue_entry::output_length.get32(&entry) as usize;
        let mut output = cmd_queue_entry::command_output_inline_data.of(&entry).to_vec();
        let mut pointer = cmd_queue_entry::output_mailbox_pointer_63_32.get(&entry) << 32
            | cmd_queue_entry::output_mailbox_pointer_31_9.get(&entry) << 9;
        for _ in 0..cmd::blocks(len) {
            let block = self.memory.bytes(pointer, 576);
            output.extend_from_slice(&block[..512]);
            pointer = cmd_if_box::next_pointer_63_32.get(&block) << 32
                | cmd_if_box::next_pointer_31_10.get(&block) << 10;
        }
        output.truncate(len.max(12));
        match CmdStatus(cmd_out::status.get32(&output) as u8) {
            CmdStatus::OK => Ok(output),
            status => {
                assert_ne!(cmd_out::syndrome.get32(&output), 0, "a refusal has a syndrome");
                Err(Failed::Status(status))
            }
        }
    }

    /// One command in slot 0, polled for, with the PRM's output length.
    pub fn command(&mut self, input: &Input) -> Answer {
        let len = Opcode::of(&input.0).output_layout().unwrap().size;
        self.command_len(input, len)
    }

    pub fn command_len(&mut self, input: &Input, output_len: usize) -> Answer {
        let before = self.next;
        let posted = self.post(0, &input.0, output_len);
        self.poll();
        let answer = self.answer(0, &posted);
        // The mailboxes are free again.
        if answer != Err(Failed::Pending) {
            let used = (self.next - before) as usize;
            self.memory.write(before, &vec![0; used]).unwrap();
            self.next = before;
        }
        answer
    }

    pub fn status(&mut self, input: &Input) -> CmdStatus {
        match self.command(input) {
            Ok(_) => CmdStatus::OK,
            Err(Failed::Status(status)) => status,
            Err(other) => panic!("{other:?}"),
        }
    }

    /// The last refusal, as the log prints it.
    pub fn refusal(&self) -> String {
        let mut refusals = self.hca.device.log.entries().filter(|e| e.level == crate::log::Level::Refusal);
        refusals.next_back().map(ToString::to_string).unwrap_or_default()
    }

    /// Gives `count` pages.
    pub fn give(&mut self, count: usize) -> CmdStatus {
        let pages = self.pages(count);
        let input = Input::new(Opcode::MANAGE_PAGES)
            .op_mod(1)
            .set(manage_pages_in::input_num_entries, count as u64)
            .pas(&pages);
        self.command_keeping(&input)
    }

    /// As [`status`](Self::status), for inputs whose pages lie below the mailboxes.
    pub fn command_keeping(&mut self, input: &Input) -> CmdStatus {
        self.status(input)
    }

    pub fn query_pages(&mut self, which: u16) -> i32 {
        let output = self.command(&Input::new(Opcode::QUERY_PAGES).op_mod(which)).unwrap();
        query_pages_out::num_pages.get32(&output) as i32
    }

    /// Brings the device up to INIT_HCA.
    pub fn initialize(&mut self) {
        assert_eq!(self.status(&Input::new(Opcode::ENABLE_HCA)), CmdStatus::OK);
        let boot = self.query_pages(1);
        assert_eq!(self.give(boot as usize), CmdStatus::OK);
        let init = self.query_pages(2);
        assert_eq!(self.give(init as usize), CmdStatus::OK);
        assert_eq!(self.status(&Input::new(Opcode::INIT_HCA)), CmdStatus::OK);
    }

    /// Brings the device up with a UAR page and a PD.
    pub fn up(profile: Profile) -> Self {
        let mut guest = Self::new(profile);
        guest.initialize();
        let output = guest.command(&Input::new(Opcode::ALLOC_UAR)).unwrap();
        guest.uar = alloc_uar_out::uar.get32(&output);
        let output = guest.command(&Input::new(Opcode::ALLOC_PD)).unwrap();
        guest.pd = alloc_pd_out::pd.get32(&output);
        guest
    }

    /// Creates an EQ of `1 << log_size` entries at `ring` for the event types of `mask`.
    pub fn create_eq(&mut self, ring: u64, log_size: u32, vector: u16, mask: u64) -> Result<u32, Failed> {
        for i in 0..1u64 << log_size {
            self.memory.write(ring + i * 64 + 63, &[1]).unwrap();
        }
        let mut input = Input::new(Opcode::CREATE_EQ);
        let context = create_eq_in::eq_context_entry.of_mut(&mut input.0);
        eqc::log_eq_size.set(context, log_size);
        eqc::uar_page.set(context, self.uar);
        eqc::intr.set(context, vector);
        create_eq_in::event_bitmask.of_mut(&mut input.0)[..8].copy_from_slice(&mask.to_be_bytes());
        let pages = (64u64 << log_size).div_ceil(4096);
        let pas: Vec<u64> = (0..pages).map(|i| ring + i * 4096).collect();
        let output = self.command(&input.pas(&pas))?;
        Ok(create_eq_out::eq_number.get32(&output))
    }

    /// Creates a CQ of `1 << log_size` entries at `ring`, its doorbell record at `record`.
    pub fn create_cq(&mut self, ring: u64, log_size: u32, record: u64, eqn: u32) -> Result<u32, Failed> {
        for i in 0..1u64 << log_size {
            self.memory.write(ring + i * 64 + 63, &[0xf0]).unwrap();
        }
        let mut input = Input::new(Opcode::CREATE_CQ);
        let context = create_cq_in::cq_context.of_mut(&mut input.0);
        cqc::log_cq_size.set(context, log_size);
        cqc::uar_page.set(context, self.uar);
        cqc::c_eqn_or_apu_element.set(context, eqn);
        cqc::dbr_addr.set(context, record);
        let pages = (64u64 << log_size).div_ceil(4096);
        let pas: Vec<u64> = (0..pages).map(|i| ring + i * 4096).collect();
        let output = self.command(&input.pas(&pas))?;
        Ok(create_cq_out::cqn.get32(&output))
    }

    /// An RC QP in reset with a send queue of 1024 blocks, all of it and its doorbell record in `page`.
    pub fn create_qp(&mut self, cqn: u32, page: u64) -> Result<u32, Failed> {
        self.create_qp_with(cqn, page, &[page; 16], |context| {
            qpc::log_sq_size.set(context, 10u8);
            qpc::rq_type.set(context, RqType::ZERO_LEN_RQ.0);
        })
    }

    /// An RC QP in reset with its doorbell record at `record` and its queues, which `size` sets, in `pages`.
    pub fn create_qp_with(
        &mut self,
        cqn: u32,
        record: u64,
        pages: &[u64],
        size: impl FnOnce(&mut [u8]),
    ) -> Result<u32, Failed> {
        let mut input = Input::new(Opcode::CREATE_QP);
        let context = create_qp_in::qpc.of_mut(&mut input.0);
        qpc::st.set(context, ServiceType::RC.0);
        qpc::pm_state.set(context, 3u8);
        qpc::pd.set(context, self.pd);
        qpc::uar_page.set(context, self.uar);
        qpc::cqn_snd.set(context, cqn);
        qpc::dbr_addr.set(context, record);
        size(context);
        let output = self.command(&input.pas(pages))?;
        Ok(create_qp_out::qpn.get32(&output))
    }

    /// Pushes a completion to CQ `cqn`, as the data path does.
    pub fn push_cqe(&mut self, cqn: u32, cqe: &[u8; 64], notify: bool) -> Result<(), CqError> {
        let mut io = Io {
            now: self.now,
            memory: &self.memory,
            interrupts: &mut self.vectors,
            wire: &mut Unplugged,
            peers: &mut NoPeers,
        };
        let Device { objects, log, .. } = &mut self.hca.device;
        objects.queues.push_cqe(&mut io, log, cqn, cqe, None, notify)
    }

    /// A physical key over everything.
    pub fn create_mkey(&mut self) -> Answer {
        let mut input = Input::new(Opcode::CREATE_MKEY);
        let context = create_mkey_in::memory_key_mkey_entry.of_mut(&mut input.0);
        mkc::pd.set(context, self.pd);
        mkc::qpn.set(context, 0xff_ffffu32);
        mkc::length64.set(context, 1u8);
        mkc::lr.set(context, 1u8);
        mkc::lw.set(context, 1u8);
        self.command(&input)
    }

    /// Rings the EQ's doorbell.
    pub fn eq_doorbell(&mut self, eqn: u32, consumer: u32, arm: bool) {
        let at = self.uar as usize * 4096 + if arm { 0x40 } else { 0x48 };
        self.write32(at, eqn << 24 | consumer & 0xff_ffff);
        self.poll();
    }
}
