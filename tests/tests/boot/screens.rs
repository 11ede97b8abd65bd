//! What people see who look at the machine's screen: a BIOS's text screen, and UEFI's pixels.

use crate::ground::{Ground, LIMIT, ground, skip};
use crate::machines::{disk, ovmf};
use ::unikernel::framebuffer::{Framebuffer, font};
use ::unikernel::text_screen::{COLUMNS, ROWS};
use rdma_lab::process::Temporary;
use rdma_lab::qemu::Output;
use rdma_lab::unikernel::{self, Options};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Instant;

/// What QEMU's monitor command `ask` writes into a file when the machine has switched itself off; `ask` is handed the file's name.
fn after_the_end(ground: &Ground, options: Options, ask: impl Fn(&Path) -> String) -> Vec<u8> {
    let folder = Temporary::folder("screen").expect("a folder");
    let (monitor, memory) = (folder.path().join("monitor"), folder.path().join("memory"));
    // QEMU stays when the machine is switched off.
    let more =
        ["-action", "shutdown=pause", "-monitor", &format!("unix:{},server=on,wait=off", monitor.display())];
    let options = Options {
        exit_device: false,
        devices: vec!["VGA".into()],
        more: more.map(str::to_owned).to_vec(),
        ..options
    };
    let mut running = unikernel::start(&ground.qemu, &ground.image, &options).expect("QEMU starts");
    let deadline = Instant::now() + LIMIT;
    loop {
        match running.next_line(deadline).expect("a line in time") {
            Some(Output::Console(line)) if line.starts_with("@step name=pci") => break,
            Some(_) => {}
            None => panic!("it ended"),
        }
    }
    let mut monitor = UnixStream::connect(monitor).expect("the monitor");
    let tell = |monitor: &mut UnixStream, words: &str| {
        monitor.write_all(words.as_bytes()).expect("it takes commands")
    };
    let mut answers = BufReader::new(monitor.try_clone().expect("the same socket"));
    // Whole when the machine is off.
    loop {
        tell(&mut monitor, "info status\n");
        let mut line = String::new();
        while !line.contains("VM status: ") {
            line.clear();
            assert_ne!(answers.read_line(&mut line).expect("an answer"), 0, "QEMU stays");
        }
        if line.contains("paused") {
            break;
        }
    }
    tell(&mut monitor, &format!("{}\nquit\n", ask(&memory)));
    while running.next_line(deadline).expect("QEMU ends").is_some() {}
    std::fs::read(memory).expect("the screen's contents")
}

/// The hello application's last lines are there, in their order.
fn assert_hello(rows: &[String]) {
    assert!(rows.iter().any(|row| row.starts_with("pci 0000:00:00.0: 8086:29c0 class 0600")), "{rows:#?}");
    let last = rows.iter().rev().find(|row| !row.is_empty());
    assert!(last.is_some_and(|row| row.starts_with("@step name=pci us=")), "{rows:#?}");
}

#[test]
fn the_text_screen_shows_what_the_serial_port_says() {
    let Some(ground) = ground() else { return skip() };
    let cells = after_the_end(ground, Options::new("app=hello"), |file| {
        format!("pmemsave 0xb8000 4000 \"{}\"", file.display())
    });
    let text = |row: &[u8]| row.iter().step_by(2).map(|byte| char::from(*byte)).collect::<String>();
    let rows: Vec<String> = cells.chunks(160).map(|row| text(row).trim_end().to_owned()).collect();
    assert_hello(&rows);
}

/// The rows of text on a picture in PPM's raw format.
fn read(picture: &[u8]) -> Vec<String> {
    let mut fields = picture.splitn(4, |byte| byte.is_ascii_whitespace());
    let mut field = || std::str::from_utf8(fields.next().expect("a field")).expect("text").to_owned();
    assert_eq!(field(), "P6");
    let (width, height): (usize, usize) =
        (field().parse().expect("a number"), field().parse().expect("a number"));
    let pixels = fields.next().and_then(|rest| rest.strip_prefix(b"255\n")).expect("8 bits for each colour");
    println!("{width} by {height} pixels");
    let lit = |x: usize, y: usize| pixels[(y * width + x) * 3] == u8::MAX;
    let screen = Framebuffer::new(1, width as u32 * 4, (width as u32, height as u32), 32);
    let scale = screen.expect("it is large enough").scale();
    let letter = |row: usize, column: usize| {
        let rows = std::array::from_fn(|y| {
            let at =
                |x| lit((column * (font::WIDTH + 1) + x) * scale, (row * (font::HEIGHT + 2) + y) * scale);
            (0..font::WIDTH).fold(0, |bits, x| bits | u8::from(at(x)) << x)
        });
        (b' '..0x7f).find(|letter| font::rows(*letter) == rows).map_or('\0', char::from)
    };
    (0..ROWS)
        .map(|row| (0..COLUMNS).map(|column| letter(row, column)).collect::<String>().trim_end().to_owned())
        .collect()
}

#[test]
fn under_uefi_the_screens_pixels_show_what_the_serial_port_says() {
    let Some(ground) = ground() else { return skip() };
    let folder = Temporary::folder("uefi-screen").expect("a folder");
    let Some(disk) = disk(ground, folder.path(), "app=hello") else { return };
    let Some(firmware) = ovmf() else { return };
    let options = Options { disk: Some(disk), firmware: Some(firmware), ..Options::new("") };
    let picture = after_the_end(ground, options, |file| format!("screendump \"{}\"", file.display()));
    assert_hello(&read(&picture));
}
