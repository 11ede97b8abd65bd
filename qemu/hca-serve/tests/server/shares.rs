//! Measures the throughput of two HCAs while the client of a third attacks. Required: at least half
//! of their throughput without the attack.
//!
//! The server runs step by step on a clock that counts its work, so that every run and every
//! machine gives the same results.

use crate::support::client::{
    BAR0, CONFIG, Client, DMA_MAP, HELLO, IDS, NO_REPLY, REGION_READ, REGION_WRITE, SET_IRQS, VERSION,
    access, map, message, set_irqs,
};
use crate::support::guest::{DEVICE_BASE, Guest, MESSAGE, join};
use crate::support::{Folder, memory, quiet};
use driver_mlx::{Error, LKey, RKey, Sge, Ticket};
use hca_model::Profile;
use hca_model::log::Level;
use hca_serve::{Options, Stepped};
use mlx5_prm::commands::{create_mkey_in, create_mkey_out};
use mlx5_prm::contexts::mkc;
use mlx5_prm::opcode::Opcode;
use mlx5_prm::status::CmdStatus;
use mlx5_prm::value::AccessMode;
use rustix::event::{EventfdFlags, eventfd};
use std::cell::{Cell, RefCell};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// Total writes of [`MESSAGE`] bytes that two guests make to each other, and writes in flight of each.
const WRITES: usize = 40_000;
const UNDER_WAY: usize = 4;

type Server = Rc<RefCell<Stepped>>;

/// Two guests that write to each other.
struct Pair {
    guests: [Guest; 2],
    posted: [usize; 2],
    done: [usize; 2],
}

impl Pair {
    fn new(guests: [Guest; 2]) -> Self {
        Self { guests, posted: [0; 2], done: [0; 2] }
    }

    /// Takes completions and posts writes, `each` of a guest. Returns whether all are done.
    fn turn(&mut self, each: usize) -> bool {
        let targets = self.guests.each_ref().map(Guest::target);
        for (index, guest) in self.guests.iter_mut().enumerate() {
            while let Some(completed) = guest.completed() {
                completed.expect("the others' data move");
                self.done[index] += 1;
            }
            while self.posted[index] < each && self.posted[index] - self.done[index] < UNDER_WAY {
                guest.post(targets[1 - index]).expect("posted");
                self.posted[index] += 1;
            }
        }
        self.done == [each; 2]
    }
}

pub struct Scene {
    pub server: Server,
    socket: PathBuf,
    pairs: Vec<Pair>,
    /// Writes of each guest.
    each: usize,
    /// Time of the next action of an attacker, beyond which an idle clock does not jump.
    until: Cell<Duration>,
    _folder: Folder,
}

impl Scene {
    fn new() -> Self {
        Self::with(|options| options)
    }

    fn with(change: impl FnOnce(Options) -> Options) -> Self {
        Self::of(3, change)
    }

    /// Serves `count` HCAs. Two have guests.
    pub fn of(count: usize, change: impl FnOnce(Options) -> Options) -> Self {
        let folder = Folder::new();
        let server = Stepped::new(change(quiet(&folder, count))).expect("served");
        let socket = server.sockets()[2].clone();
        let server = Rc::new(RefCell::new(server));
        let pairs = vec![Pair::new(join([0, 1].map(|index| Guest::bring_up_stepping(&server, index))))];
        Self { server, socket, pairs, each: WRITES / 2, until: Cell::new(Duration::MAX), _folder: folder }
    }

    /// Lets the guests of two more HCAs write to each other, and each guest make `each` writes.
    pub fn with_pair(mut self, hcas: [usize; 2], each: usize) -> Self {
        self.pairs.push(Pair::new(join(hcas.map(|index| Guest::bring_up_stepping(&self.server, index)))));
        Self { each, ..self }
    }

    /// Creates a third guest, with a queue pair that is connected to itself.
    fn third(&self) -> Guest {
        let mut guest = Guest::bring_up_stepping(&self.server, 2);
        let address = guest.wait_active();
        let own = guest.open();
        guest.connect(address, own);
        guest
    }

    /// Returns the server's time for the data, and the attacker's share of it. `attack` is called
    /// before each step of the server.
    pub fn run(&mut self, attack: impl FnMut(&Cell<Duration>)) -> (Duration, Duration) {
        let (times, attacker) = self.measure(attack);
        (times.into_iter().max().expect("a pair"), attacker)
    }

    /// Returns the server's time until each pair's data have moved, and the attacker's share of all.
    pub fn measure(&mut self, mut attack: impl FnMut(&Cell<Duration>)) -> (Vec<Duration>, Duration) {
        let spent = |server: &Server| {
            let server = server.borrow();
            (server.worked(), Duration::from_nanos(server.activity().clients[2].nanoseconds))
        };
        let before = spent(&self.server);
        let mut times: Vec<Option<Duration>> = vec![None; self.pairs.len()];
        for pair in &mut self.pairs {
            (pair.posted, pair.done) = ([0; 2], [0; 2]);
        }
        while times.iter().any(Option::is_none) {
            for (pair, time) in self.pairs.iter_mut().zip(&mut times) {
                if pair.turn(self.each) && time.is_none() {
                    *time = Some(self.server.borrow().worked() - before.0);
                }
            }
            attack(&self.until);
            self.server.borrow_mut().step_until(self.until.get());
        }
        let after = spent(&self.server);
        (times.into_iter().flatten().collect(), after.1 - before.1)
    }

    /// Measures without and with `attack`. The attack must use at least a `part`-th of the time of
    /// the data, otherwise it is too weak to count.
    fn stands(&mut self, what: &str, part: u32, mut attack: impl FnMut()) {
        let (alone, _) = self.run(|_| {});
        let (beside, attacker) = self.run(|_| attack());
        println!("{what}: {alone:?} alone, {beside:?} beside it, which had {attacker:?}");
        assert!(beside <= 2 * alone, "{what}: {beside:?} for what takes {alone:?} alone");
        assert!(attacker >= alone / part, "{what}: {attacker:?} of {alone:?} are no attack");
    }
}

/// Sends as many bytes as the socket accepts.
struct Flood {
    client: Client,
    batch: Vec<u8>,
    at: usize,
}

impl Flood {
    fn new(client: Client, batch: Vec<u8>) -> Self {
        client.stream.set_nonblocking(true).expect("nonblocking");
        Self { client, batch, at: 0 }
    }

    fn turn(&mut self) {
        while let Ok(sent) = (&self.client.stream).write(&self.batch[self.at..]) {
            self.at = (self.at + sent) % self.batch.len();
        }
    }
}

/// Returns the input of CREATE_MKEY.
fn create_mkey(pd: u32, free: bool, octowords: u32, parts: &[(u32, u32, u64)]) -> Vec<u8> {
    let mut input = vec![0; Opcode::CREATE_MKEY.input_layout().expect("known").size];
    input[..2].copy_from_slice(&Opcode::CREATE_MKEY.0.to_be_bytes());
    create_mkey_in::translations_octword_actual_size.set(&mut input, parts.len() as u32);
    let context = create_mkey_in::memory_key_mkey_entry.of_mut(&mut input);
    mkc::pd.set(context, pd);
    mkc::qpn.set(context, 0xff_ffffu32);
    mkc::umr_en.set(context, 1u8);
    mkc::free.set(context, free);
    mkc::access_mode_1_0.set(context, AccessMode::KLMS.0);
    for right in [mkc::lr, mkc::lw, mkc::rr, mkc::rw] {
        right.set(context, 1u8);
    }
    mkc::len.set(context, parts.iter().map(|part| u64::from(part.0)).sum::<u64>());
    mkc::translations_octword_size.set(context, octowords);
    for (bytes, key, address) in parts {
        input.extend(bytes.to_be_bytes());
        input.extend(key.to_be_bytes());
        input.extend(address.to_be_bytes());
    }
    input
}

/// Creates a key and returns its number.
fn indirect(guest: &mut Guest, parts: &[(u32, u32, u64)]) -> u32 {
    let input = create_mkey(guest.pd().number().get(), false, parts.len() as u32, parts);
    let mut output = [0; 16];
    // SAFETY: the parts refer to keys that the driver created over its own memory.
    let ticket = unsafe { guest.hca().submit(&input, output.len()) }.expect("submitted");
    while !guest.hca().poll_command(ticket, &mut output).expect("made") {
        guest.client().step();
    }
    create_mkey_out::mkey_index.get32(&output) << 8
}

#[test]
fn a1_lists_of_lists_of_single_bytes() {
    let mut scene = Scene::new();
    let mut guest = scene.third();
    let (lkey, base) = (guest.key().lkey().get(), guest.key().address());
    // 192 single bytes, each 16 times at each of the 3 levels above: a message has as many segments
    // as bytes.
    let mut key = indirect(&mut guest, &(0..192).map(|n| (1, lkey, base + n)).collect::<Vec<_>>());
    for _ in 0..3 {
        let parts: Vec<_> = (0..192).map(|n| (96, key, n % 2 * 96)).collect();
        key = indirect(&mut guest, &parts);
    }
    let (from, len) = (Sge { address: 0, lkey: LKey::new(key), length: 4096 }, base + MESSAGE as u64);
    let mut under_way = 0;
    scene.stands("KLM lists", 4, || {
        while let Some(completed) = guest.completed() {
            completed.expect("the attacker's own data move");
            under_way -= 1;
        }
        while under_way < 32 {
            guest.post_from(from, len, RKey::new(lkey)).expect("posted");
            under_way += 1;
        }
    });
}

#[test]
fn a2_memory_without_end() {
    let profile = |n| Profile { memory: 64 << 20, ..Profile::node(n) };
    let mut scene = Scene::with(|options| Options { profiles: (0..3).map(profile).collect(), ..options });
    let mut guest = scene.third();
    let input = create_mkey(guest.pd().number().get(), true, 1 << 16, &[]);
    let mut waiting: Vec<Ticket> = Vec::new();
    let mut refused = 0;
    scene.stands("keys of 3 MB", 4, || {
        let hca = guest.hca();
        waiting.retain(|ticket| match hca.poll_command(*ticket, &mut [0; 16]) {
            Ok(done) => !done,
            Err(Error::Command(error)) if error.status == CmdStatus::NO_RES => {
                refused += 1;
                false
            }
            Err(error) => panic!("{error}"),
        });
        // SAFETY: no request uses the key, so it gives access to no memory.
        while let Ok(ticket) = unsafe { hca.submit(&input, 16) } {
            waiting.push(ticket);
        }
    });
    let mut server = scene.server.borrow_mut();
    let budget = server.world().nodes()[2].hca.budget();
    assert!(budget.most() <= budget.limit());
    assert!(refused > 0 && budget.held() > budget.limit() / 10 * 9, "{} bytes held", budget.held());
}

#[test]
fn a3_refusals_without_end() {
    let mut scene = Scene::new();
    let client = scene.third().into_client();
    let doorbell = |n: u64| {
        // A doorbell of a missing QP, in a page without owner.
        let mut payload = access(BAR0, (64 + n % 64) * 4096 + 0x800, 8);
        payload.extend((n << 8).to_be_bytes());
        message(1, REGION_WRITE, NO_REPLY, &payload)
    };
    let mut flood = Flood::new(client, (0..2000).flat_map(doorbell).collect());
    scene.stands("refused doorbells", 4, || flood.turn());
    let mut server = scene.server.borrow_mut();
    assert!(server.world().nodes()[2].hca.log().refusals() > 10_000);
}

#[test]
fn messages_without_end() {
    let mut scene = Scene::new();
    let client = Client::stepping(&scene.server, 2);
    let mut payload = access(CONFIG, 0x3c, 1);
    payload.push(0);
    let mut flood = Flood::new(client, message(1, REGION_WRITE, NO_REPLY, &payload).repeat(1000));
    scene.stands("messages", 4, || flood.turn());
}

/// A client that connects repeatedly. The callback gets the connection and the number of replies so
/// far. It returns whether the visit is over.
struct Visits<F> {
    socket: PathBuf,
    client: Option<(Client, usize)>,
    visit: F,
    count: u32,
}

impl<F: FnMut(&mut Client, usize) -> bool> Visits<F> {
    fn new(scene: &Scene, visit: F) -> Self {
        Self { socket: scene.socket.clone(), client: None, visit, count: 0 }
    }

    fn turn(&mut self) {
        let Some((client, answers)) = &mut self.client else {
            let mut client = Client::of(UnixStream::connect(&self.socket).expect("connects"));
            client.post(VERSION, 0, HELLO, &[]);
            self.client = Some((client, 0));
            return;
        };
        client.stream.set_nonblocking(true).expect("nonblocking");
        let mut peeked = [0; 1];
        let flags = rustix::net::RecvFlags::PEEK | rustix::net::RecvFlags::DONTWAIT;
        let over = match rustix::net::recv(&client.stream, &mut peeked[..], flags) {
            Err(rustix::io::Errno::AGAIN) => return,
            Ok((0, _)) | Err(_) => true,
            Ok(_) => {
                // The first byte of a reply means that the complete reply is available.
                client.stream.set_nonblocking(false).expect("blocking");
                *answers += 1;
                (self.visit)(client, *answers)
            }
        };
        if over {
            self.client = None;
            self.count += 1;
        }
    }
}

#[test]
fn a4_memory_that_is_truncated_again_and_again() {
    let mut scene = Scene::new();
    let mut file: Option<File> = None;
    let mut visits = Visits::new(&scene, |client, answers| {
        let answer = client.receive().expect("an answer");
        if answers == 1 {
            let memory = memory(1 << 20);
            client.post(DMA_MAP, 0, &map(3, 0, DEVICE_BASE, 1 << 20), &[memory.as_fd()]);
            file = Some(memory);
            return false;
        }
        if answers == 2 {
            client.write(CONFIG, 4, &6u16.to_le_bytes());
        } else if answers >= 3 && answer.payload[16] == 0xff {
            return true;
        } else if answers >= 3 && answer.payload[16] & 0x80 == 0 {
            // The device is ready, and the doorbell detects that the command queue is lost.
            file.as_ref().expect("mapped").set_len(0).expect("truncated");
            client.write(BAR0, 0x10, &[(DEVICE_BASE >> 32) as u32, 0].map(u32::to_be_bytes).concat());
            client.write(BAR0, 0x18, &1u32.to_be_bytes());
        }
        client.post(REGION_READ, 0, &access(BAR0, 0x1fc, 4), &[]);
        false
    });
    scene.stands("truncated memory", 1000, || visits.turn());
    assert!(visits.count > 20, "{} devices failed", visits.count);
    assert!(scene.server.borrow().activity().clients[2].failures > 20);
}

#[test]
fn a5_mistakes_in_the_model_again_and_again() {
    // No real panic is available, so the log's sink panics in the middle of a device's work.
    let log: hca_serve::LogSink = Arc::new(move |node, entry| {
        assert!(node != 2 || entry.level < Level::Refusal, "on purpose");
    });
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        let on_purpose = info.payload().downcast_ref::<&str>().is_some_and(|text| *text == "on purpose");
        if !on_purpose {
            hook(info);
        }
    }));
    let mut scene = Scene::with(|options| Options { log, ..options });
    let mut visits = Visits::new(&scene, |client, answers| {
        let answer = client.receive().expect("an answer");
        if answers > 1 && answer.payload[16..] != IDS {
            return true;
        }
        // A doorbell without a command queue is refused.
        client.write(BAR0, 0x18, &1u32.to_be_bytes());
        client.post(REGION_READ, 0, &access(CONFIG, 0, 4), &[]);
        false
    });
    scene.stands("panics", 1000, || visits.turn());
    assert!(scene.server.borrow().activity().clients[2].failures > 20);
}

#[test]
fn a5_malformed_messages_again_and_again() {
    let mut scene = Scene::new();
    let nonsense: [&[u8]; 4] =
        [&[0xff; 64], &[0; 16], &message(1, VERSION, 0, b"\0\0\0\0{"), &message(1, VERSION, 0, b"\0\0")];
    let (mut answer, mut turn) = ([0; 4096], 0);
    let mut visits = Visits::new(&scene, |client, answers| {
        let _ = (&client.stream).read(&mut answer).expect("an answer");
        turn += 1;
        client.stream.write_all(nonsense[turn % nonsense.len()]).is_err() || answers > 8
    });
    scene.stands("malformed messages", 1000, || visits.turn());
    assert!(visits.count > 100, "{} connections ended", visits.count);
}

#[test]
fn a6_a_descriptor_that_blocks() {
    let mut scene = Scene::new();
    let full = eventfd(0, EventfdFlags::empty()).expect("eventfd");
    rustix::io::write(&full, &(u64::MAX - 1).to_ne_bytes()).expect("filled");
    let mut guest = scene.third();
    for start in [0, 16] {
        let descriptors = [full.as_fd(); 16];
        let reply = guest.client().ask_with(SET_IRQS, &set_irqs(0x24, start, 16), &descriptors);
        assert!(!reply.is_error());
    }
    let (server, mut plugged) = (Rc::clone(&scene.server), true);
    // The client reconnects immediately, and is not accepted.
    let mut visits = Visits::new(&scene, |_, _| false);
    scene.stands("blocking descriptors", 4, || {
        // A link change raises an interrupt.
        plugged = !plugged;
        server.borrow_mut().world().set_cable(2, plugged);
        visits.turn();
    });
    assert_eq!(server.borrow().activity().clients[2].failures, 1);
    drop(guest);
}
