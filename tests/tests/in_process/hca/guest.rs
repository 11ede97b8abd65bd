//! A guest without a driver: commands, rings and registers by hand, so that every one of them can be wrong.

use driver_mlx::{Bar, DmaSlice};
use harness::{ModelBar, World};
use hca_model::Profile;
use mlx5_prm::cmd::{self, cmd_if_box, cmd_out, cmd_queue_entry};
use mlx5_prm::commands::*;
use mlx5_prm::contexts::{ads, cqc, eqc, mkc, qpc};
use mlx5_prm::opcode::Opcode;
use mlx5_prm::status::CmdStatus;
use mlx5_prm::value::ServiceType;
use std::rc::Rc;

/// Bytes of its memory.
pub const MEMORY: usize = 32 << 20;
/// Where its parts lie: command queue, mailboxes, pages for the device, and from there on what it takes with [`Guest::page`].
const MAILBOXES: usize = 0x1000;
const PAGES: usize = 0x40_0000;
const FREE: usize = 0x80_0000;
/// Polls that a command may take.
const PATIENCE: usize = 200_000;

/// A command that the device refused, or did not answer in time (`None`).
pub type Answer = Result<Vec<u8>, Option<CmdStatus>>;

/// An input that is zero but for its opcode.
pub fn input(opcode: Opcode) -> Vec<u8> {
    let mut bytes = vec![0; opcode.input_layout().map_or(16, |layout| layout.size)];
    bytes[..2].copy_from_slice(&opcode.0.to_be_bytes());
    bytes
}

/// The guest.
pub struct Guest {
    pub world: Rc<World>,
    pub node: usize,
    pub bar: ModelBar,
    memory: DmaSlice<'static>,
    next: usize,
    given: usize,
    token: u8,
    pub uar: u32,
    pub pd: u32,
    pub cqn: u32,
    /// A key over all of its memory, by device address.
    pub key: u32,
    record: u64,
}

/// A QP made and connected to another of the same guest.
#[derive(Clone, Debug)]
pub struct RawQp {
    pub qpn: u32,
    /// Offset of its ring of `1 << LOG_SQ` basic blocks, and of its doorbell record.
    pub ring: usize,
    pub record: usize,
    pub posted: u16,
}

/// log2 of basic blocks of a send queue.
const LOG_SQ: u32 = 6;

impl Guest {
    /// A guest whose device is up.
    pub fn up(world: &Rc<World>, node: usize, mut profile: Profile) -> Self {
        profile.objects_per_growth = 1 << 20;
        let (platform, _) = world.attach(profile, MEMORY);
        let memory = world.memory(node).as_slice();
        let bar = driver_mlx::Platform::bar(&platform);
        let mut guest = Self {
            world: Rc::clone(world),
            node,
            bar,
            memory,
            next: FREE,
            given: PAGES,
            token: 0,
            uar: 0,
            pd: 0,
            cqn: 0,
            key: 0,
            record: 0,
        };
        guest.start();
        guest
    }

    /// Resets the device and brings it up again.
    pub fn restart(&mut self) {
        self.world.reset(self.node);
        (self.next, self.given) = (FREE, PAGES);
        self.start();
    }

    fn start(&mut self) {
        for _ in 0..PATIENCE {
            if self.bar.read32(0x1fc) >> 31 == 0 {
                break;
            }
            self.world.idle(self.world.now() + 1_000_000);
        }
        assert_eq!(self.bar.read32(0x1fc) >> 31, 0, "`initializing` clears");
        let queue = self.address(0);
        self.bar.poke32(0x10, (queue >> 32) as u32);
        self.bar.poke32(0x14, queue as u32);
        let good = |guest: &mut Self, input: Vec<u8>| guest.command(&input).expect("a good command");
        good(self, input(Opcode::ENABLE_HCA));
        for which in [1, 2] {
            let mut query = input(Opcode::QUERY_PAGES);
            query[7] = which;
            let pages = query_pages_out::num_pages.get32(&good(self, query));
            let mut give = input(Opcode::MANAGE_PAGES);
            give[7] = 1;
            manage_pages_in::input_num_entries.set(&mut give, pages);
            for _ in 0..pages {
                give.extend(self.address(self.given).to_be_bytes());
                self.given += 4096;
            }
            good(self, give);
        }
        good(self, input(Opcode::INIT_HCA));
        self.uar = alloc_uar_out::uar.get32(&good(self, input(Opcode::ALLOC_UAR)));
        self.pd = alloc_pd_out::pd.get32(&good(self, input(Opcode::ALLOC_PD)));
        let record = self.page();
        self.record = self.address(record);
        self.make_eq();
        self.cqn = self.make_cq(8).expect("a CQ");
        self.key = self.make_key(0, &[]).expect("a key");
    }

    /// The device's address of a place in memory.
    pub fn address(&self, offset: usize) -> u64 {
        self.memory.device_address() + offset as u64
    }

    /// A page of its own, or one that was used before when all are.
    pub fn page(&mut self) -> usize {
        let at = self.next;
        self.next = if at + 8192 > MEMORY { FREE } else { at + 4096 };
        at
    }

    pub fn write(&self, offset: usize, bytes: &[u8]) {
        self.memory.write(offset, bytes).expect("inside");
    }

    fn read(&self, offset: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.memory.read(offset, &mut bytes).expect("inside");
        bytes
    }

    /// Writes a command and its mailboxes into entry 0, without ringing.
    pub fn write_command(&mut self, input: &[u8], output_len: usize) -> [u8; 64] {
        self.token = self.token % 255 + 1;
        let mut entry = [0u8; 64];
        cmd_queue_entry::r#type.set(&mut entry, cmd::TYPE_PCI_CMD_XPORT);
        cmd_queue_entry::input_length.set(&mut entry, input.len() as u32);
        cmd_queue_entry::output_length.set(&mut entry, output_len as u32);
        cmd_queue_entry::token.set(&mut entry, self.token);
        let mut head = input[..input.len().min(16)].to_vec();
        head.resize(16, 0);
        cmd_queue_entry::command_input_inline_data.of_mut(&mut entry).copy_from_slice(&head);
        let blocks = cmd::blocks(input.len());
        let first = self.chain(MAILBOXES, blocks, input.get(16..).unwrap_or_default());
        let second = self.chain(MAILBOXES + blocks * 1024, cmd::blocks(output_len), &[]);
        cmd_queue_entry::input_mailbox_pointer_63_32.set(&mut entry, (first >> 32) as u32);
        cmd_queue_entry::input_mailbox_pointer_31_9.set(&mut entry, first as u32 >> 9);
        cmd_queue_entry::output_mailbox_pointer_63_32.set(&mut entry, (second >> 32) as u32);
        cmd_queue_entry::output_mailbox_pointer_31_9.set(&mut entry, second as u32 >> 9);
        cmd_queue_entry::ownership.set(&mut entry, 1u8);
        let signature = cmd::entry_signature(&entry);
        cmd_queue_entry::signature.set(&mut entry, signature);
        self.write(0, &entry);
        entry
    }

    fn chain(&self, at: usize, blocks: usize, data: &[u8]) -> u64 {
        for number in 0..blocks {
            let mut block = [0u8; 576];
            let part = data.get(number * 512..).unwrap_or_default();
            let part = &part[..part.len().min(512)];
            block[..part.len()].copy_from_slice(part);
            if number + 1 < blocks {
                let next = self.address(at + 1024 * (number + 1));
                cmd_if_box::next_pointer_63_32.set(&mut block, (next >> 32) as u32);
                cmd_if_box::next_pointer_31_10.set(&mut block, next as u32 >> 10);
            }
            cmd_if_box::block_number.set(&mut block, number as u32);
            cmd_if_box::token.set(&mut block, self.token);
            let (ctrl, all) = cmd::block_signatures(&block);
            cmd_if_box::ctrl_signature.set(&mut block, ctrl);
            cmd_if_box::signature.set(&mut block, all);
            self.write(at + 1024 * number, &block);
        }
        if blocks == 0 { 0 } else { self.address(at) }
    }

    pub fn ring_command(&self) {
        self.bar.poke32(0x18, 1);
    }

    /// A command, waited for.
    pub fn command(&mut self, input: &[u8]) -> Answer {
        let len = Opcode::of(input).output_layout().map_or(16, |layout| layout.size);
        self.command_len(input, len)
    }

    pub fn command_len(&mut self, input: &[u8], len: usize) -> Answer {
        self.write_command(input, len);
        self.ring_command();
        for _ in 0..PATIENCE {
            let entry = self.read(0, 64);
            let (owned, status) = cmd::status_own(entry[0x3f]);
            if !owned {
                if status.0 != 0 {
                    return Err(None);
                }
                let mut output = cmd_queue_entry::command_output_inline_data.of(&entry).to_vec();
                let at = MAILBOXES + cmd::blocks(input.len()) * 1024;
                for block in 0..cmd::blocks(len) {
                    output.extend(self.read(at + block * 1024, 512));
                }
                return match CmdStatus(cmd_out::status.get32(&output) as u8) {
                    CmdStatus::OK => Ok(output),
                    status => Err(Some(status)),
                };
            }
            self.world.idle(self.world.now() + 1_000);
        }
        Err(None)
    }

    fn make_eq(&mut self) {
        let ring = self.page();
        for i in 0..64 {
            self.write(ring + i * 64 + 63, &[1]);
        }
        let mut create = input(Opcode::CREATE_EQ);
        let context = create_eq_in::eq_context_entry.of_mut(&mut create);
        eqc::log_eq_size.set(context, 6u8);
        eqc::uar_page.set(context, self.uar);
        // Nobody consumes events here.
        eqc::oi.set(context, 1u8);
        create.extend(self.address(ring).to_be_bytes());
        self.command(&create).expect("an EQ");
    }

    /// A CQ whose overruns are no error, all of its pages the same one.
    pub fn make_cq(&mut self, log_size: u32) -> Result<u32, Option<CmdStatus>> {
        let ring = self.page();
        self.write(ring, &[0xf0; 4096]);
        let mut create = input(Opcode::CREATE_CQ);
        let context = create_cq_in::cq_context.of_mut(&mut create);
        cqc::log_cq_size.set(context, log_size);
        cqc::uar_page.set(context, self.uar);
        cqc::c_eqn_or_apu_element.set(context, 0x10u32);
        cqc::dbr_addr.set(context, self.record);
        cqc::oi.set(context, 1u8);
        for _ in 0..(64usize << log_size).div_ceil(4096) {
            create.extend(self.address(ring).to_be_bytes());
        }
        self.command(&create).map(|output| create_cq_out::cqn.get32(&output))
    }

    /// A key: of parts (bytes, key, address) of others, or without them over everything by device address.
    pub fn make_key(&mut self, len: u64, parts: &[(u32, u32, u64)]) -> Result<u32, Option<CmdStatus>> {
        let mut create = input(Opcode::CREATE_MKEY);
        let octowords = parts.len() as u32;
        create_mkey_in::translations_octword_actual_size.set(&mut create, octowords);
        let context = create_mkey_in::memory_key_mkey_entry.of_mut(&mut create);
        mkc::pd.set(context, self.pd);
        mkc::qpn.set(context, 0xff_ffffu32);
        mkc::mkey_7_0.set(context, 0x42u8);
        for right in [mkc::lr, mkc::lw, mkc::rr, mkc::rw, mkc::a, mkc::umr_en, mkc::en_rinval] {
            right.set(context, 1u8);
        }
        if parts.is_empty() {
            mkc::length64.set(context, 1u8);
        } else {
            mkc::access_mode_1_0.set(context, mlx5_prm::value::AccessMode::KLMS.0);
            mkc::len.set(context, len);
            mkc::translations_octword_size.set(context, octowords);
        }
        for (count, key, address) in parts {
            create.extend(count.to_be_bytes());
            create.extend(key.to_be_bytes());
            create.extend(address.to_be_bytes());
        }
        self.command(&create).map(|output| create_mkey_out::mkey_index.get32(&output) << 8 | 0x42)
    }

    /// An RC QP in RTS, connected to itself.
    pub fn make_qp(&mut self) -> Result<RawQp, Option<CmdStatus>> {
        let (ring, record) = (self.page(), self.page());
        self.write(record, &[0; 8]);
        let mut create = input(Opcode::CREATE_QP);
        let context = create_qp_in::qpc.of_mut(&mut create);
        qpc::st.set(context, ServiceType::RC.0);
        qpc::pm_state.set(context, 3u8);
        qpc::pd.set(context, self.pd);
        qpc::uar_page.set(context, self.uar);
        qpc::log_sq_size.set(context, LOG_SQ);
        qpc::rq_type.set(context, mlx5_prm::value::RqType::ZERO_LEN_RQ.0);
        qpc::cqn_snd.set(context, self.cqn);
        qpc::dbr_addr.set(context, self.address(record));
        create.extend(self.address(ring).to_be_bytes());
        let qpn = create_qp_out::qpn.get32(&self.command(&create)?);
        let lid = self.world.with_hca(self.node, |hca| hca.port().lid);
        for opcode in [Opcode::RST2INIT_QP, Opcode::INIT2RTR_QP, Opcode::RTR2RTS_QP] {
            let mut modify = input(opcode);
            rst2init_qp_in::qpn.set(&mut modify, qpn);
            let context = rst2init_qp_in::qpc.of_mut(&mut modify);
            qpc::rre.set(context, 1u8);
            qpc::rwe.set(context, 1u8);
            qpc::rae.set(context, 1u8);
            qpc::mtu.set(context, 5u8);
            qpc::log_msg_max.set(context, 30u8);
            qpc::remote_qpn.set(context, qpn);
            qpc::log_rra_max.set(context, 4u8);
            qpc::log_sra_max.set(context, 4u8);
            qpc::retry_count.set(context, 7u8);
            qpc::rnr_retry.set(context, 7u8);
            let path = qpc::primary_address_path.of_mut(context);
            ads::vhca_port_num.set(path, 1u8);
            ads::rlid.set(path, lid);
            ads::ack_timeout.set(path, 14u8);
            self.command(&modify)?;
        }
        Ok(RawQp { qpn, ring, record, posted: 0 })
    }

    /// Puts a WQE of whole 16-byte segments into a QP's ring.
    pub fn post(&self, qp: &mut RawQp, wqe: &[u8]) {
        for (i, block) in wqe.chunks(64).enumerate() {
            let slot = usize::from(qp.posted.wrapping_add(i as u16)) % (1 << LOG_SQ);
            self.write(qp.ring + slot * 64, block);
        }
        qp.posted = qp.posted.wrapping_add(wqe.len().div_ceil(64) as u16);
    }

    /// Rings a QP's doorbell.
    pub fn ring(&self, qp: &RawQp) {
        self.write(qp.record + 4, &u32::from(qp.posted).to_be_bytes());
        let head = u64::from(qp.posted) << 40 | u64::from(qp.qpn) << 8 | 1;
        self.bar.poke64(self.uar as usize * 4096 + 0x800, head);
    }
}
