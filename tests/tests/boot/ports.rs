//! The console's serial port by choice, and the log's.

use crate::ground::{ground, skip};
use crate::machines::{boot, succeeded, text};
use rdma_lab::defmt_log::Decoder;
use rdma_lab::process::Temporary;
use rdma_lab::unikernel::{Options, Verdict};

/// Boots with these words on a machine whose COM2 is a file. Returns the text of COM1, and the bytes of COM2.
fn two_ports(words: &str) -> Option<(String, Vec<u8>)> {
    let Some(ground) = ground() else {
        skip();
        return None;
    };
    let folder = Temporary::folder("ports-test").expect("a folder");
    let second = folder.path().join("second");
    let more = vec!["-serial".to_owned(), format!("file:{}", second.display())];
    let first = succeeded(&boot(ground, &Options { more, ..Options::new(words) }));
    Some((first, std::fs::read(second).expect("the second port's bytes")))
}

#[test]
fn console_is_the_chosen_port_or_none() {
    let Some((first, second)) = two_ports("app=hello serial=com2,57600") else { return };
    assert_eq!(first, "", "the first port is silent");
    let second = String::from_utf8(second).expect("text");
    assert!(second.starts_with("memory: ") && second.contains("@step name=pci "), "{second}");
    let Some((first, second)) = two_ports("app=hello serial=off") else { return };
    assert_eq!((first.as_str(), second.as_slice()), ("", &[][..]));
}

#[test]
fn absent_port_is_reported_on_the_found_one() {
    let Some(ground) = ground() else { return skip() };
    let said = succeeded(&boot(ground, &Options::new("app=hello serial=com3 frames=0xfeb00000/4")));
    assert!(said.starts_with("console: there is no serial port at the place of serial=\n"), "{said}");
    assert!(said.contains("log: there is no serial port at the place of frames=\n"), "{said}");
    let wrong = boot(ground, &Options::new("app=hello serial=com9"));
    assert_eq!(wrong.verdict, Some(Verdict::Usage), "{}", text(&wrong));
}

#[test]
fn frames_of_the_log_go_to_a_second_port() {
    let Some((_, bytes)) = two_ports("app=hello frames=com2") else { return };
    let ground = ground().expect("it booted");
    let decoder = Decoder::for_image(&ground.image).expect("the image").expect("it logs");
    let log = decoder.decode(&bytes);
    assert!(log.lines.iter().any(|line| line.contains(": up, seed ")), "{log:?}");
}
