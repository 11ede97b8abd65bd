//! A client attacks while two other HCAs move data.

use crate::support::client::{
    BAR0, CONFIG, Client, DMA_MAP, DMA_READ, IDS, NO_REPLY, REGION_READ, REGION_WRITE, SET_IRQS, access, map,
    message, set_irqs,
};
use crate::support::guest::{DEVICE_BASE, Guest, pair};
use crate::support::{log, memory, serve, serve_with};
use hca_model::log::Level;
use hca_serve::{Options, Served};
use rustix::event::{EventfdFlags, eventfd};
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Minimum number of writes of the two guests.
const ROUNDS: u8 = 60;

/// Lets two guests write to each other and check every byte until `attack` completes. `attack` gets
/// the socket of the third HCA.
pub fn meanwhile(served: &Served, sockets: &[std::path::PathBuf], attack: impl FnOnce(&Path) + Send) {
    let mut guests = pair([&sockets[0], &sockets[1]]);
    let targets = guests.each_ref().map(Guest::target);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let attacker = scope.spawn(|| {
            attack(&sockets[2]);
            over.store(true, Ordering::Release);
        });
        let mut rounds = 0u32;
        while rounds < ROUNDS.into() || !over.load(Ordering::Acquire) {
            let byte = (rounds % 251) as u8 + 1;
            let (from, to) = if rounds.is_multiple_of(2) { (0, 1) } else { (1, 0) };
            guests[from].write(byte, targets[to]).expect("the others' data move");
            assert!(guests[to].written().iter().all(|found| *found == byte), "round {rounds}");
            assert!(!guests[from].failed());
            rounds += 1;
            if attacker.is_finished() {
                over.store(true, Ordering::Release);
            }
        }
        attacker.join().expect("the attack goes as planned");
    });
    assert!(served.is_alive());
}

#[test]
fn memory_that_is_truncated_ends_its_own_device_only() {
    let (_folder, served, sockets) = serve(3);
    meanwhile(&served, &sockets, |socket| {
        for _ in 0..3 {
            let guest = Guest::bring_up(socket);
            guest.file.set_len(0).expect("truncated");
            let mut client = guest.into_client();
            // The command queue's memory is lost, which the doorbell detects.
            client.write(BAR0, 0x18, &0xffff_ffffu32.to_be_bytes());
            while client.ids() == IDS {
                std::thread::yield_now();
            }
            assert_eq!(client.ids(), [0xff; 4], "the device fell off the bus");
            assert_eq!(client.read(BAR0, 0, 4), [0xff; 4]);
            drop(client);
            assert_eq!(Client::new(socket).ids(), IDS, "the next client finds a new one");
        }
    });
}

#[test]
fn a_descriptor_that_blocks_ends_its_own_device_only() {
    let (_folder, served, sockets) = serve(3);
    meanwhile(&served, &sockets, |socket| {
        let mut guest = Guest::bring_up(socket);
        let full = eventfd(0, EventfdFlags::empty()).expect("eventfd");
        rustix::io::write(&full, &(u64::MAX - 1).to_ne_bytes()).expect("filled");
        let descriptors = [full.as_fd(); 16];
        for start in [0, 16] {
            let reply = guest.client().ask_with(SET_IRQS, &set_irqs(0x24, start, 16), &descriptors);
            assert!(!reply.is_error());
        }
        // A link change raises an interrupt.
        guest.wait_active();
        served.set_cable(2, false).expect("served");
        let mut rest = Vec::new();
        let client = guest.into_client();
        assert_eq!(
            (&client.stream).read_to_end(&mut rest).map_err(|e| e.kind()),
            Ok(0),
            "the connection ends"
        );
        assert_eq!(Client::new(socket).ids(), IDS, "after a while another is served");
    });
}

#[test]
fn a_client_that_does_not_answer_for_its_memory_ends_its_own_device_only() {
    let (_folder, served, sockets) = serve(3);
    meanwhile(&served, &sockets, |socket| {
        let mut client = Client::new(socket);
        assert!(!client.ask(DMA_MAP, &map(3, 0, DEVICE_BASE, 1 << 30)).is_error());
        client.write(CONFIG, 4, &6u16.to_le_bytes());
        client.write(BAR0, 0x10, &[(DEVICE_BASE >> 32) as u32, 0].map(u32::to_be_bytes).concat());
        while client.read(BAR0, 0x1fc, 4)[0] & 0x80 != 0 {
            std::thread::yield_now();
        }
        client.write(BAR0, 0x18, &1u32.to_be_bytes());
        // The device reads its command queue, and sends no more requests.
        let asked = client.receive().expect("asked");
        assert_eq!((asked.command, asked.flags & 0xf), (DMA_READ, 0));
        let end = std::iter::from_fn(|| client.receive().ok()).count();
        assert!(end < 8, "{end} further messages");
        assert_eq!(Client::new(socket).ids(), IDS);
    });
}

#[test]
fn a_client_that_reads_no_answers_is_not_waited_for() {
    let (_folder, served, sockets) = serve(3);
    meanwhile(&served, &sockets, |socket| {
        let client = Client::new(socket);
        client.stream.set_nonblocking(true).expect("nonblocking");
        let ask = message(1, REGION_READ, 0, &access(BAR0, 0, 65_536));
        let mut asked = 0;
        // Send until the server accepts no more.
        while let Ok(n) = (&client.stream).write(&ask) {
            asked += n;
            assert!(asked < 1 << 30, "the server takes everything and keeps the answers");
            std::thread::yield_now();
        }
        std::thread::sleep(std::time::Duration::from_millis(300));
    });
}

#[test]
fn a_client_that_ends_with_answers_unread_is_no_reason_for_a_warning() {
    let (sink, lines) = log();
    let (_folder, served, sockets) = serve_with(1, |options| Options { log: sink, ..options });
    for _ in 0..50 {
        let mut client = Client::new(&sockets[0]);
        for _ in 0..20 {
            client.post(REGION_READ, 0, &access(CONFIG, 0, 64), &[]);
        }
        // Wait until replies are available.
        rustix::net::recv(&client.stream, &mut [0; 1][..], rustix::net::RecvFlags::PEEK).expect("an answer");
    }
    assert_eq!(Client::new(&sockets[0]).ids(), IDS);
    let lines = lines.lock().expect("lines");
    assert!(!lines.iter().any(|line| line.contains("connection")), "{lines:?}");
    assert!(served.is_alive());
}

#[test]
fn floods_of_refusals_take_their_own_time_and_few_lines() {
    let (sink, lines) = log();
    let (_folder, served, sockets) = serve_with(3, |options| Options { log: sink, ..options });
    meanwhile(&served, &sockets, |socket| {
        let mut client = Guest::bring_up(socket).into_client();
        let mut batch = Vec::new();
        for n in 0..2000u64 {
            // A doorbell of a missing QP, in a page without owner.
            let mut payload = access(BAR0, (64 + n % 64) * 4096 + 0x800, 8);
            payload.extend((n << 8).to_be_bytes());
            batch.extend(message(1, REGION_WRITE, NO_REPLY, &payload));
        }
        for _ in 0..100 {
            client.stream.write_all(&batch).expect("taken");
        }
        assert_eq!(client.ids(), IDS);
    });
    let refusals = served.with_world(|world, _| world.nodes()[2].hca.log().refusals()).expect("served");
    assert!(refusals >= 200_000, "{refusals}");
    let told = lines.lock().expect("lines").iter().filter(|line| line.starts_with("2: ")).count();
    assert!(told < 10_000, "{told} lines of {refusals}");
}

#[test]
fn a_mistake_in_the_model_ends_its_own_device_only() {
    // No real panic is available, so the log's sink panics in the middle of a device's work.
    let broken = Arc::new(AtomicBool::new(true));
    let breaks = Arc::clone(&broken);
    let log: hca_serve::LogSink = Arc::new(move |node, entry| {
        assert!(node != 2 || entry.level < Level::Refusal || !breaks.load(Ordering::Acquire), "on purpose");
    });
    let (_folder, served, sockets) = serve_with(3, |options| Options { log, ..options });
    meanwhile(&served, &sockets, |socket| {
        for _ in 0..3 {
            let mut client = Client::new(socket);
            // A doorbell without a command queue is refused.
            client.write(BAR0, 0x18, &1u32.to_be_bytes());
            while client.ids() == IDS {
                std::thread::yield_now();
            }
            assert_eq!(client.ids(), [0xff; 4]);
            drop(client);
            assert_eq!(Client::new(socket).ids(), IDS, "the next client finds a new device");
        }
        broken.store(false, Ordering::Release);
        Guest::bring_up(socket).wait_active();
    });
}

#[test]
fn malformed_messages_end_their_own_connection_only() {
    let (_folder, served, sockets) = serve(3);
    meanwhile(&served, &sockets, |socket| {
        for nonsense in [
            &message(1, 1, 0, b"\0\0\0\0{\"capabilities\":{}}")[..],
            &message(1, 1, 0, b"\0\0"),
            &message(1, 1, 0, b"\0\0\0\0{"),
            &[0xff; 64],
            &[0; 16],
            &[0; 3],
            &message(1, 1, 0, b"\0\0\0\0\0")[..18],
        ] {
            let mut stream = std::os::unix::net::UnixStream::connect(socket).expect("connects");
            stream.write_all(nonsense).expect("sent");
            stream.shutdown(std::net::Shutdown::Write).expect("shut");
            let mut answer = Vec::new();
            let _ = stream.read_to_end(&mut answer);
        }
        assert_eq!(Client::new(socket).ids(), IDS);
    });
}

#[test]
fn maps_without_end_are_refused() {
    let (_folder, served, sockets) = serve(3);
    meanwhile(&served, &sockets, |socket| {
        let mut client = Client::new(socket);
        let file = memory(4096);
        let mut maps = 0u64;
        while !client.map(&file, 0, maps << 12, 4096).is_error() {
            maps += 1;
            assert!(maps < 1 << 16, "a process has no more mappings");
        }
        assert!(maps >= 4096, "{maps}");
    });
}
