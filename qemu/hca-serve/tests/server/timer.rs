//! Tests the device's free-running timer, read by a client with an idle device.

use crate::support::client::{BAR0, CONFIG, Client};
use crate::support::{Folder, quiet};
use hca_model::device::device_clock;
use hca_serve::Stepped;
use mlx5_prm::init_seg::INTERNAL_TIMER_H_OFFSET;
use std::cell::RefCell;
use std::rc::Rc;

#[test]
fn the_timer_runs_while_nothing_else_does() {
    let folder = Folder::new();
    let server = Rc::new(RefCell::new(Stepped::new(quiet(&folder, 1)).expect("served")));
    let mut client = Client::stepping(&server, 0);
    let clock = |client: &Client| device_clock(client.time().expect("counted").as_nanos() as u64);
    client.write(CONFIG, 4, &2u16.to_le_bytes());
    let begin = clock(&client);
    for _ in 0..20 {
        // An idle clock jumps to the next deadline.
        client.step();
        let before = clock(&client);
        let bytes = client.read(BAR0, INTERNAL_TIMER_H_OFFSET as u64, 8);
        let ticks = u64::from_be_bytes(bytes.try_into().expect("eight bytes"));
        assert!((before..=clock(&client)).contains(&ticks), "{ticks}, and {before} before it was read");
    }
    assert!(clock(&client) > begin);
}
