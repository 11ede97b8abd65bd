//! A card that answers as a recorded one did, and knows nothing else: registers, the command queue and its mailboxes, byte by byte. It shares no
//! layout with the driver but the names of capabilities, so that a mistake in one does not hide in the other.

use driver_mlx::{Bar, DmaRegion, DmaSlice, DoorbellRegister, Instant, MapError, Platform};
use mlx5_prm::caps::{atomic_caps, cmd_hca_cap};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};

/// Where the card sees the region.
const DEVICE: u64 = 0x2_0000_0000;
/// Its registers: the initialization segment and UAR pages.
const BAR: usize = 32 << 20;
/// Sizes of a command queue's entry, of what lies in a mailbox, and of capabilities.
const ENTRY: usize = 64;
const MAILBOX_DATA: usize = 512;
const CAPABILITIES: usize = 4096;
const BAD_OP: u8 = 2;

/// Dwords by their offsets.
type Dwords = Vec<(usize, u32)>;

/// A recorded command.
#[derive(Clone, Debug)]
struct Command {
    key: (u16, u16),
    name: String,
    asked: Dwords,
    came: Dwords,
}

/// What was recorded.
#[derive(Clone, Default)]
pub struct Transcript {
    registers: BTreeMap<usize, u32>,
    commands: Vec<Command>,
    max: Vec<u8>,
    now: Vec<u8>,
    atomic: Vec<u8>,
    roce: Vec<u8>,
}

fn hex(text: &str) -> u32 {
    u32::from_str_radix(text, 16).unwrap_or_else(|_| panic!("{text}: no hexadecimal number"))
}

fn dwords(text: &str) -> Dwords {
    let dword = |pair: &str| pair.split_once('=').map(|(at, value)| (hex(at) as usize, hex(value)));
    text.split_whitespace().map(|pair| dword(pair).expect("OFFSET=DWORD")).collect()
}

/// Sets the field of a name, of those that the recording names.
fn set_named(block: &mut [u8], name: &str, value: u32) {
    macro_rules! fields {
        ($($structure:ident: $($field:ident)*);*) => {
            match name {
                $($(stringify!($field) => $structure::$field.set(block, value),)*)*
                _ => panic!("{name}: no such capability"),
            }
        };
    }
    fields! {
        cmd_hca_cap: log_max_qp log_max_qp_sz log_max_srq log_max_srq_sz log_max_cq log_max_cq_sz log_max_eq
            log_max_eq_sz log_max_mkey max_indirection log_max_mrw_sz log_max_bsf_list_size log_max_klm_list_size
            log_max_ra_req_qp log_max_ra_res_qp log_max_ra_req_dc log_max_ra_res_dc end_pad cc_query_allowed
            cc_modify_allowed gid_table_size pkey_table_size max_qp_cnt vport_counters vport_group_manager
            vhca_group_manager ets nic_flow_table eswitch_manager local_ca_ack_delay port_type num_ports log_max_msg
            stat_rate_support cqe_version compact_address_vector striding_rq cmdif_checksum wq_signature
            sctr_data_cqe roce atomic cq_oi cq_resize cq_moderation cq_eq_remap block_lb_mc scqe_break_moderation
            cq_period_start_from_cqe cd apm qkv pkv xrc ud uc rc uar_sz log_pg_sz bf log_bf_reg_size
            pad_tx_eth_packet max_wqe_sz_sq max_wqe_sz_rq max_wqe_sz_sq_dc max_qp_mcg log_max_mcg
            log_max_transport_domain log_max_pd log_max_xrcd log_uar_page_sz device_frequency_mhz;
        atomic_caps: atomic_operations atomic_size_qp atomic_size_dc
    }
}

impl Transcript {
    /// Reads a recording.
    pub fn read(text: &str) -> Self {
        let block = || vec![0; CAPABILITIES];
        let mut this = Self { max: block(), now: block(), atomic: block(), roce: block(), ..Self::default() };
        for line in text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let (kind, rest) = line.split_once(' ').expect("a kind");
            let words: Vec<&str> = rest.split_whitespace().collect();
            match (kind, words.as_slice()) {
                ("register", [at, value]) => _ = this.registers.insert(hex(at) as usize, hex(value)),
                ("max", [name, value]) => this.set(name, hex(value)),
                ("now", [name, value]) => set_named(&mut this.now, name, hex(value)),
                ("atomic", [name, value]) => set_named(&mut this.atomic, name, hex(value)),
                ("roce", [at, value]) => put(&mut this.roce, hex(at) as usize, hex(value)),
                ("unnamed", [at, bits]) => {
                    for block in [&mut this.max, &mut this.now] {
                        let word = &mut block[hex(at) as usize..][..4];
                        let set = u32::from_be_bytes((&*word).try_into().expect("four")) | hex(bits);
                        word.copy_from_slice(&set.to_be_bytes());
                    }
                }
                ("command", [opcode, op_mod, name, ..]) => {
                    let mut parts = rest.split('|').skip(1);
                    let mut part = || dwords(parts.next().unwrap_or_default());
                    let (asked, came) = (part(), part());
                    let key = (hex(opcode) as u16, hex(op_mod) as u16);
                    this.commands.push(Command { key, name: (*name).to_owned(), asked, came });
                }
                _ => panic!("not understood: {line}"),
            }
        }
        this
    }

    /// Another card: one of its general capabilities is this.
    pub fn set(&mut self, name: &str, value: u32) {
        set_named(&mut self.max, name, value);
        set_named(&mut self.now, name, value);
    }

    /// The general capabilities as they are before the start.
    pub fn now(&self) -> &[u8] {
        &self.now
    }
}

/// The card.
pub struct Card {
    transcript: Transcript,
    memory: DmaSlice<'static>,
    clock: Cell<u64>,
    played: RefCell<Played>,
}

/// What happened so far.
#[derive(Default)]
pub struct Played {
    registers: BTreeMap<usize, u32>,
    /// Commands of the recording that came.
    pub commands: usize,
    /// Pages that the card has, and those still to come of the command that is being played.
    pub pages: BTreeSet<u64>,
    left: Option<u32>,
    /// The first entry as it was when its doorbell rang.
    pub first_entry: Option<[u8; ENTRY]>,
    /// What SET_HCA_CAP asked for.
    pub set_capabilities: Option<Vec<u8>>,
    /// Commands that were not recorded, and were refused.
    pub refused: Vec<u16>,
    /// The function is disabled again.
    pub disabled: bool,
    /// Writes to UAR pages.
    pub doorbells: Vec<(usize, u32)>,
}

fn word(bytes: &[u8], at: usize) -> u32 {
    let word = bytes.get(at..at + 4).map(|word| u32::from_be_bytes(word.try_into().expect("four")));
    word.unwrap_or(0)
}

fn put(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_be_bytes());
}

impl Card {
    /// A card with `bytes` of memory, which lives as long as the process.
    pub fn new(transcript: Transcript, bytes: usize) -> (&'static Self, DmaRegion) {
        let layout = std::alloc::Layout::from_size_align(bytes, 4096).expect("a layout");
        // SAFETY: of some size, zeroed, and never freed.
        let va = unsafe { std::alloc::alloc_zeroed(layout) };
        assert!(!va.is_null());
        // SAFETY: as above; the driver and the card use it, in one thread.
        let memory = unsafe { DmaSlice::from_raw(va, DEVICE, bytes) };
        // SAFETY: as above.
        let region = unsafe { DmaRegion::new(va, DEVICE, bytes) }.expect("aligned");
        let registers = transcript.registers.clone();
        let played = RefCell::new(Played { registers, ..Played::default() });
        let card = Self { transcript, memory, clock: Cell::new(1), played };
        (Box::leak(Box::new(card)), region)
    }

    /// What happened so far.
    pub fn played<T>(&self, look: impl FnOnce(&Played) -> T) -> T {
        look(&self.played.borrow())
    }

    /// Whether all that was recorded was played, or what would come next.
    pub fn rest(&self) -> Option<&str> {
        self.transcript.commands.get(self.played.borrow().commands).map(|command| command.name.as_str())
    }

    fn bytes(&self, address: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.memory.read((address - DEVICE) as usize, &mut bytes).expect("inside");
        bytes
    }

    fn store(&self, address: u64, bytes: &[u8]) {
        self.memory.write((address - DEVICE) as usize, bytes).expect("inside");
    }

    /// The mailboxes of a chain that `len` bytes behind the first 16 need.
    fn mailboxes(&self, entry: &[u8], at: usize, len: usize) -> Vec<u64> {
        let mut next = u64::from(word(entry, at)) << 32 | u64::from(word(entry, at + 4));
        let count = len.saturating_sub(16).div_ceil(MAILBOX_DATA);
        let mut chain = Vec::new();
        for number in 0..count {
            assert!(next != 0 && next.is_multiple_of(1024), "a mailbox at {next:#x}");
            let tail = self.bytes(next + MAILBOX_DATA as u64, 64);
            assert_eq!(word(&tail, 0x38), number as u32, "block number");
            assert_eq!(tail[0x3d], entry[0x3c], "token");
            chain.push(next);
            next = u64::from(word(&tail, 0x30)) << 32 | u64::from(word(&tail, 0x34));
        }
        chain
    }

    /// Carries out the command in an entry of the queue.
    fn carry_out(&self, index: u32) {
        let mut played = self.played.borrow_mut();
        let low = played.registers.get(&0x14).copied().unwrap_or(0) & 0xffff_f000;
        let queue = u64::from(played.registers.get(&0x10).copied().unwrap_or(0)) << 32 | u64::from(low);
        let at = queue + u64::from(index) * ENTRY as u64;
        let mut entry: [u8; ENTRY] = self.bytes(at, ENTRY).try_into().expect("an entry");
        played.first_entry.get_or_insert(entry);
        assert_eq!((entry[0], entry[0x3f]), (7, 1), "type and ownership");
        let (in_len, out_len) = (word(&entry, 4) as usize, word(&entry, 0x38) as usize);
        let mut input = entry[0x10..0x20].to_vec();
        for mailbox in self.mailboxes(&entry, 8, in_len) {
            input.extend(self.bytes(mailbox, MAILBOX_DATA));
        }
        input.truncate(in_len);
        let mut output = vec![0; out_len.max(16)];
        self.answer(&mut played, &input, &mut output);
        for (mailbox, data) in
            self.mailboxes(&entry, 0x30, out_len).into_iter().zip(output[16..].chunks(MAILBOX_DATA))
        {
            self.store(mailbox, data);
        }
        entry[0x20..0x30].copy_from_slice(&output[..16]);
        entry[0x3f] = 0;
        self.store(at, &entry);
    }

    fn answer(&self, played: &mut Played, input: &[u8], output: &mut [u8]) {
        let key = ((word(input, 0) >> 16) as u16, word(input, 4) as u16);
        let fits = |command: &&Command| {
            command.key == key
                && (key.0 == 0x108 || command.asked.iter().all(|(at, value)| word(input, *at) == *value))
        };
        let next = self.transcript.commands.get(played.commands).filter(fits);
        match key {
            // The way down was not published: pages go back as they are asked for.
            (0x108, 2) => {
                let count = word(input, 0xc).min(played.pages.len() as u32);
                put(output, 8, count);
                for index in 0..count as usize {
                    let page = played.pages.pop_first().expect("counted");
                    put(output, 0x10 + 8 * index, (page >> 32) as u32);
                    put(output, 0x14 + 8 * index, page as u32);
                }
                return;
            }
            (0x103 | 0x302 | 0x803, _) => return,
            (0x105, _) => {
                assert!(played.pages.is_empty(), "pages are left");
                played.disabled = true;
                return;
            }
            // Asked by this driver earlier than by Linux's.
            (0x100, 6 | 7) => return output[0x10..][..CAPABILITIES].copy_from_slice(&self.transcript.atomic),
            (0x100, 8 | 9) => return output[0x10..][..CAPABILITIES].copy_from_slice(&self.transcript.roce),
            // Not published: `resd_lkey`, which mlx5_ib reads.
            (0x203, _) => return put(output, 0xc, 0x200),
            _ => {}
        }
        let Some(command) = next else {
            played.refused.push(key.0);
            output[0] = BAD_OP;
            return;
        };
        for (at, value) in &command.came {
            put(output, *at, *value);
        }
        match key {
            (0x108, _) => {
                let count = word(input, 0xc);
                let wanted = command.asked.iter().find(|(at, _)| *at == 0xc).map_or(0, |(_, count)| *count);
                let left = played.left.take().unwrap_or(wanted);
                for index in 0..count as usize {
                    let at = 0x10 + 8 * index;
                    let page = u64::from(word(input, at)) << 32 | u64::from(word(input, at + 4));
                    assert!(page != 0 && page.is_multiple_of(4096), "page {page:#x}");
                    assert!(played.pages.insert(page), "page {page:#x} twice");
                }
                played.left = Some(left.checked_sub(count).expect("no more than was asked for"));
                if played.left != Some(0) {
                    return;
                }
                played.left = None;
            }
            (0x100, 0) => output[0x10..][..CAPABILITIES].copy_from_slice(&self.transcript.max),
            (0x100, 1) => output[0x10..][..CAPABILITIES].copy_from_slice(&self.transcript.now),
            (0x109, 0) => played.set_capabilities = Some(input[0x10..].to_vec()),
            _ => {}
        }
        played.commands += 1;
    }
}

/// A queue's register: the card, and the offset.
pub struct CardRegister(&'static Card, usize);

impl std::fmt::Debug for CardRegister {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:#x}", self.1)
    }
}

impl DoorbellRegister for CardRegister {
    fn ring(&mut self, value: u64) {
        self.write(0, value);
    }
    fn write(&mut self, offset: usize, value: u64) {
        let at = self.1 + offset;
        let halves = [(at, (value >> 32) as u32), (at + 4, value as u32)];
        self.0.played.borrow_mut().doorbells.extend(halves);
    }
}

impl Bar for &'static Card {
    type DoorbellRegister = CardRegister;

    fn len(&self) -> usize {
        BAR
    }

    fn read32(&self, offset: usize) -> u32 {
        self.played.borrow().registers.get(&offset).copied().unwrap_or(0)
    }

    unsafe fn write32(&self, offset: usize, value: u32) {
        match offset {
            0x10 => _ = self.played.borrow_mut().registers.insert(offset, value),
            // The size of the queue is the card's.
            0x14 => {
                let mut played = self.played.borrow_mut();
                let size = played.registers.get(&0x14).copied().unwrap_or(0) & 0xff;
                played.registers.insert(0x14, value & 0xffff_ff00 | size);
            }
            0x18 => (0..32).filter(|index| value >> index & 1 == 1).for_each(|index| self.carry_out(index)),
            _ => self.played.borrow_mut().doorbells.push((offset, value)),
        }
    }

    unsafe fn doorbell_register(&self, offset: usize, _: usize) -> CardRegister {
        CardRegister(self, offset)
    }
}

impl Platform for &'static Card {
    type Bar = Self;

    fn bar(&self) -> Self {
        self
    }
    fn uar_write_combining(&self, _: usize, _: usize) -> Option<Self> {
        None
    }
    fn now(&self) -> Instant {
        Instant::from_nanos(self.clock.get())
    }
    fn idle(&self, deadline: Instant) {
        self.clock.set(deadline.as_nanos().max(self.clock.get() + 1));
    }
    unsafe fn map(&self, _: usize, _: usize, _: bool) -> Result<u64, MapError> {
        Err(MapError::Unsupported)
    }
    unsafe fn unmap(&self, _: u64, _: usize) {}
}
